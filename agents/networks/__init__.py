"""Networks for any algorithm, as plain tf.Modules. Their constructors make all the variables."""
