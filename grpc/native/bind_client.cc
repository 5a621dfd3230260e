#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client.h"
#include "module.h"

namespace py = pybind11;

namespace seed_rl {

namespace {

// The room for answers that are wrong, so that their size can be told.
constexpr std::size_t kSpareAnswerBytes = 64 << 10;

struct Field {
    py::dtype dtype;
    std::vector<py::ssize_t> shape;  // its first dimension is of rows
    std::size_t row_bytes;
};

using Fields = std::vector<std::pair<py::dtype, std::vector<py::ssize_t>>>;

std::vector<Field> fields_of(const Fields& specs) {
    std::vector<Field> fields;
    for (const auto& [dtype, shape] : specs) {
        Field field{dtype, {0}, static_cast<std::size_t>(dtype.itemsize())};
        for (const py::ssize_t size : shape) {
            field.shape.push_back(size);
            field.row_bytes *= static_cast<std::size_t>(size);
        }
        fields.push_back(std::move(field));
    }
    return fields;
}

py::str text(const std::string& data) {
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeUTF8(data.data(), static_cast<Py_ssize_t>(data.size()), "replace"));
}

py::dict dictionary(const Metadata& metadata) {
    py::dict values;
    for (const auto& [name, value] : metadata) values[text(name)] = text(value);
    return values;
}

bool is_interrupted() {
    const py::gil_scoped_acquire acquired;
    return PyErr_CheckSignals() != 0;
}

[[noreturn]] void raise(const py::object& type, const py::tuple& arguments) {
    PyErr_SetObject(type.ptr(), arguments.ptr());
    throw py::error_already_set();
}

class NativeClient {
public:
    NativeClient(std::string path, std::string host, int port, double keepalive_secs,
                 py::object status, py::object deadline_exceeded)
        : client_(std::move(path), std::move(host), port, keepalive_secs),
          status_(std::move(status)),
          deadline_exceeded_(std::move(deadline_exceeded)) {}

    py::bytes unary(const std::string& method, const Metadata& metadata, const std::string& message,
                    double timeout_secs) {
        Client::Outcome outcome;
        {
            const py::gil_scoped_release released;
            outcome =
                client_.unary(method, metadata, message, timeout_secs, is_interrupted, answer_);
        }
        check(outcome);
        return answer_bytes();
    }

    py::dict open(const std::string& method, const Metadata& metadata, const Fields& step_fields,
                  const Fields& action_fields, double timeout_secs) {
        steps_ = fields_of(step_fields);
        actions_ = fields_of(action_fields);
        action_bytes_ = 0;
        for (const Field& field : actions_) action_bytes_ += field.row_bytes;
        columns_.resize(steps_.size());
        Metadata headers;
        Client::Outcome outcome;
        {
            const py::gil_scoped_release released;
            outcome = client_.open(method, metadata, timeout_secs, is_interrupted, headers);
        }
        check(outcome);
        return dictionary(headers);
    }

    bool send(const py::object& columns) {
        if (!look_at(columns)) return false;
        {
            const py::gil_scoped_release released;
            client_.send(columns_, max_answer_bytes(), true);
        }
        kept_.clear();
        return true;
    }

    void send_message(const py::bytes& message, std::size_t rows) {
        char* data;
        py::ssize_t size;
        if (PyBytes_AsStringAndSize(message.ptr(), &data, &size)) throw py::error_already_set();
        rows_ = rows;
        const py::gil_scoped_release released;
        client_.send_message(data, static_cast<std::size_t>(size), max_answer_bytes(), true);
    }

    py::object receive(double timeout_secs) {
        Client::Outcome outcome;
        {
            const py::gil_scoped_release released;
            outcome = client_.receive(timeout_secs, is_interrupted, answer_);
        }
        check(outcome);
        return answer();
    }

    // The two in one, without a detour to the thread that would push what isn't written yet.
    py::object act(const py::object& columns, double timeout_secs) {
        if (!look_at(columns)) return py::none();
        Client::Outcome outcome;
        {
            const py::gil_scoped_release released;
            client_.send(columns_, max_answer_bytes(), false);
            outcome = client_.receive(timeout_secs, is_interrupted, answer_);
        }
        kept_.clear();
        check(outcome);
        return answer();
    }

    void close() { client_.close(); }

private:
    // Whether the columns are those that can be sent as they are: of the very dtypes and shapes,
    // and contiguous. Sets columns_, kept_ and rows_ if so.
    bool look_at(const py::object& columns) {
        if (!PyList_Check(columns.ptr()) && !PyTuple_Check(columns.ptr())) return false;
        PyObject** const items = PySequence_Fast_ITEMS(columns.ptr());
        if (static_cast<std::size_t>(PySequence_Fast_GET_SIZE(columns.ptr())) != steps_.size()) {
            return false;
        }
        py::ssize_t rows = 0;
        for (std::size_t i = 0; i < steps_.size(); ++i) {
            const Field& field = steps_[i];
            if (!py::isinstance<py::array>(items[i])) return false;
            const auto* const array = py::detail::array_proxy(items[i]);
            if (array->descr != field.dtype.ptr() || !(array->flags & py::array::c_style) ||
                array->nd != static_cast<int>(field.shape.size())) {
                return false;
            }
            if (i == 0) rows = array->dimensions[0];
            if (array->dimensions[0] != rows ||
                !std::equal(field.shape.begin() + 1, field.shape.end(), array->dimensions + 1)) {
                return false;
            }
            columns_[i] = {array->data, static_cast<std::size_t>(rows) * field.row_bytes};
        }
        if (rows == 0) return false;
        rows_ = static_cast<std::size_t>(rows);
        for (std::size_t i = 0; i < steps_.size(); ++i) {
            kept_.push_back(py::reinterpret_borrow<py::object>(items[i]));
        }
        return true;
    }

    std::size_t max_answer_bytes() const {
        return rows_ * action_bytes_ + kMaxFieldHeaderBytes + kSpareAnswerBytes;
    }

    void check(Client::Outcome outcome) {
        switch (outcome) {
            case Client::Outcome::kDone: return;
            case Client::Outcome::kInterrupted: throw py::error_already_set();
            case Client::Outcome::kDeadline: raise(deadline_exceeded_, py::tuple());
            case Client::Outcome::kEnded: break;
        }
        const Status status = [this] {
            const py::gil_scoped_release released;
            return client_.status();
        }();
        raise(status_, py::make_tuple(status.code, text(status.details),
                                      dictionary(status.trailers)));
    }

    py::bytes answer_bytes() const {
        return {reinterpret_cast<const char*>(answer_.data()), answer_.size()};
    }

    // New arrays, or the message where it isn't the one that was wanted.
    py::object answer() {
        std::uint8_t header[kMaxHeaderBytes];
        const std::size_t size = rows_ * action_bytes_;
        const std::size_t header_bytes = put_header(header, size) - kPrefixBytes;
        if (answer_.size() != header_bytes + size ||
            std::memcmp(answer_.data(), header + kPrefixBytes, header_bytes) != 0) {
            return answer_bytes();
        }
        py::list columns(actions_.size());
        const std::uint8_t* data = answer_.data() + header_bytes;
        for (std::size_t i = 0; i < actions_.size(); ++i) {
            Field& field = actions_[i];
            field.shape[0] = static_cast<py::ssize_t>(rows_);
            py::array column(field.dtype, field.shape);
            const std::size_t bytes = rows_ * field.row_bytes;
            if (bytes) std::memcpy(column.mutable_data(), data, bytes);
            data += bytes;
            columns[i] = std::move(column);
        }
        return columns;
    }

    Client client_;
    const py::object status_, deadline_exceeded_;
    std::vector<Field> steps_, actions_;
    std::size_t action_bytes_ = 0;
    std::vector<Client::Column> columns_;
    std::vector<py::object> kept_;  // the arrays, while the GIL is not held
    std::size_t rows_ = 0;  // of the message that was sent last
    std::vector<std::uint8_t> answer_;
};

}  // namespace

void bind_client(py::module_& module) {
    const auto exception = [&](const char* name) {
        const py::object type = py::reinterpret_steal<py::object>(PyErr_NewException(
            (std::string("seed_rl.grpc._native.") + name).c_str(), nullptr, nullptr));
        module.attr(name) = type;
        return type;
    };
    const py::object status = exception("Status");
    const py::object deadline_exceeded = exception("DeadlineExceeded");
    py::class_<NativeClient>(module, "Client")
        .def(py::init([status, deadline_exceeded](std::string path, std::string host, int port,
                                                  double keepalive_secs) {
                 return std::make_unique<NativeClient>(std::move(path), std::move(host), port,
                                                       keepalive_secs, status, deadline_exceeded);
             }),
             py::arg("path"), py::arg("host"), py::arg("port"), py::arg("keepalive_secs"))
        .def("unary", &NativeClient::unary, py::arg("method"), py::arg("metadata"),
             py::arg("message"), py::arg("timeout_secs"))
        .def("open", &NativeClient::open, py::arg("method"), py::arg("metadata"),
             py::arg("step_fields"), py::arg("action_fields"), py::arg("timeout_secs"))
        .def("send", &NativeClient::send, py::arg("columns"))
        .def("send_message", &NativeClient::send_message, py::arg("message"), py::arg("rows"))
        .def("receive", &NativeClient::receive, py::arg("timeout_secs"))
        .def("act", &NativeClient::act, py::arg("columns"), py::arg("timeout_secs"))
        .def("close", &NativeClient::close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace seed_rl
