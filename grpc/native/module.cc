// The Python module seed_rl.grpc._native.
#include "module.h"

PYBIND11_MODULE(_native, module) {
    module.doc() = "The wire's native core. Use it through seed_rl.grpc.server and .client.";
    module.def("nghttp2_version", [] { return std::string(nghttp2_version(0)->version_str); });
    seed_rl::bind_server(module);
    seed_rl::bind_client(module);
}
