#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "module.h"
#include "server.h"

namespace py = pybind11;

namespace seed_rl {

namespace {

py::bytes bytes(const std::vector<std::uint8_t>& data) {
    return {reinterpret_cast<const char*>(data.data()), data.size()};
}

// Metadata may hold any bytes.
py::str text(const std::string& data) {
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeUTF8(data.data(), static_cast<Py_ssize_t>(data.size()), "replace"));
}

std::shared_ptr<Server> make_server(std::vector<int> listeners, std::vector<std::size_t> step_sizes,
                                    const std::vector<std::pair<std::size_t, std::size_t>>& floats,
                                    std::vector<std::size_t> action_sizes, std::size_t capacity,
                                    double timeout_secs, double keepalive_secs,
                                    std::size_t max_message_bytes, double waited_for_secs) {
    Server::Options options;
    options.listeners = std::move(listeners);
    options.rows.sizes = std::move(step_sizes);
    for (const auto& [field, value_bytes] : floats) {
        options.rows.floats.push_back({field, value_bytes});
    }
    for (const std::size_t size : options.rows.sizes) options.rows.row_bytes += size;
    options.rows.max_message_bytes = max_message_bytes;
    options.action_sizes = std::move(action_sizes);
    options.capacity = capacity;
    options.batch_timeout = Seconds(timeout_secs);
    options.keepalive = Seconds(keepalive_secs);
    options.waited_for = Seconds(waited_for_secs);
    return std::make_shared<Server>(std::move(options));
}

py::object next_batch(Server& server, double timeout_secs, const py::object& closed) {
    Batcher::Taken taken{};
    wait_in_slices(timeout_secs, [&](Seconds timeout) {
        taken = server.batcher().take(timeout);
        return taken.outcome != Batcher::Taken::Outcome::kTimeout;
    });
    switch (taken.outcome) {
        case Batcher::Taken::Outcome::kBatch:
            return py::make_tuple(taken.batch->index(), taken.size, taken.num_restarted);
        case Batcher::Taken::Outcome::kTimeout:
            return py::none();
        default:
            PyErr_SetString(closed.ptr(), "the server was closed");
            throw py::error_already_set();
    }
}

// The arrays keep the server, and so the memory, alive.
py::list memory(const std::shared_ptr<Server>& server, int index) {
    Batcher& batcher = server->batcher();
    Batch& batch = batcher.batch(index);
    const py::object owner = py::cast(server);
    const auto array = [&](std::uint8_t* data, std::size_t size) {
        return py::array_t<std::uint8_t>({size}, {std::size_t{1}}, data, owner);
    };
    py::list columns;
    for (std::size_t field = 0; field < batcher.row_sizes().size(); ++field) {
        columns.append(array(batch.column(field), batcher.capacity() * batcher.row_sizes()[field]));
    }
    columns.append(array(batch.restarted(), batcher.capacity()));
    return columns;
}

void reply(Server& server, int batch, std::size_t size, const py::sequence& columns) {
    const auto& sizes = server.action_sizes();
    if (columns.size() != sizes.size()) throw py::value_error("wanted a column for each field");
    std::vector<const std::uint8_t*> data;
    std::vector<py::object> kept;
    for (std::size_t field = 0; field < sizes.size(); ++field) {
        kept.push_back(columns[field]);
        const auto column = py::cast<py::array>(kept.back());
        if ((column.flags() & py::array::c_style) == 0 ||
            static_cast<std::size_t>(column.nbytes()) < size * sizes[field]) {
            throw py::value_error("wanted contiguous columns with a row for each of the batch's");
        }
        data.push_back(static_cast<const std::uint8_t*>(column.data()));
    }
    const py::gil_scoped_release release;
    server.reply(batch, data);
}

py::object next_event(Server& server, double timeout_secs) {
    Server::Event event{};
    const bool is_there = wait_in_slices(
        timeout_secs, [&](Seconds timeout) { return server.next_event(timeout, event); });
    if (!is_there) return py::none();
    switch (event.kind) {
        case Server::Event::Kind::kJoin:
            return py::make_tuple("join", event.call, bytes(event.message), text(event.token),
                                  event.text);
        case Server::Event::Kind::kAct:
            return py::make_tuple("act", event.call, text(event.lease), text(event.token),
                                  event.text);
        case Server::Event::Kind::kBad:
            return py::make_tuple("bad", event.call, bytes(event.message), bytes(event.started));
        default:
            return py::make_tuple("end", event.call, event.text);
    }
}

}  // namespace

void bind_server(py::module_& module) {
    const py::object closed =
        py::reinterpret_steal<py::object>(PyErr_NewException("seed_rl.grpc._native.Closed", nullptr,
                                                             nullptr));
    module.attr("Closed") = closed;
    using release = py::call_guard<py::gil_scoped_release>;
    py::class_<Server, std::shared_ptr<Server>>(module, "Server")
        .def(py::init(&make_server), py::arg("listeners"), py::arg("step_sizes"), py::arg("floats"),
             py::arg("action_sizes"), py::arg("capacity"), py::arg("timeout_secs"),
             py::arg("keepalive_secs"), py::arg("max_message_bytes"), py::arg("waited_for_secs"))
        .def("next_batch",
             [closed](Server& server, double timeout_secs) {
                 return next_batch(server, timeout_secs, closed);
             })
        .def("memory", &memory)
        .def("reply", &reply)
        .def("next_event", &next_event)
        .def("respond",
             [](Server& server, std::uint64_t call, const py::bytes& payload) {
                 const std::string data = payload;
                 const py::gil_scoped_release released;
                 server.respond(call, data);
             })
        .def("accept", &Server::accept, release())
        .def("refuse", &Server::refuse, release())
        .def("silences",
             [](Server& server) {
                 py::list silences;
                 for (const auto& silence : server.silences()) {
                     silences.append(py::make_tuple(silence.call, silence.secs));
                 }
                 return silences;
             })
        .def("stats",
             [](Server& server) {
                 std::uint64_t rows = 0;
                 std::uint64_t batches = 0;
                 server.batcher().count(rows, batches);
                 return py::make_tuple(rows, batches);
             })
        .def("fail", [](Server& server) { server.batcher().close(); }, release())
        .def(
            "close",
            [](Server& server, bool finished, double grace_secs) {
                server.close(finished, Seconds(grace_secs));
            },
            release());
}

}  // namespace seed_rl
