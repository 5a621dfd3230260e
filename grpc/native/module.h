// What the parts of the Python module share.
#pragma once

#include <nghttp2/nghttp2.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>

#include "batcher.h"

namespace seed_rl {

void bind_server(pybind11::module_& module);
void bind_client(pybind11::module_& module);

// Calls `wait(timeout)`, without the GIL and in slices, until it returns true or `timeout_secs` have
// passed, so that Ctrl-C is heard. Returns whether it returned true.
template <typename Wait>
bool wait_in_slices(double timeout_secs, Wait wait) {
    constexpr Seconds kSlice(0.2);
    const auto start = Clock::now();
    while (true) {
        const Seconds left = Seconds(timeout_secs) - Seconds(Clock::now() - start);
        bool is_over;
        {
            const pybind11::gil_scoped_release release;
            is_over = wait(std::clamp(left, Seconds(0), kSlice));
        }
        if (is_over) return true;
        if (left <= kSlice) return false;
        if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
    }
}

}  // namespace seed_rl
