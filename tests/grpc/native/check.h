// What the native checks share: failing, random numbers.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>

namespace seed_rl::check {

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char* format, ...) {
    std::va_list arguments;
    va_start(arguments, format);
    std::fputs("FAILED: ", stderr);
    std::vfprintf(stderr, format, arguments);
    std::fputc('\n', stderr);
    va_end(arguments);
    std::abort();
}

class Random {
public:
    explicit Random(std::uint64_t seed) : engine_(seed) {}

    // Between both, which are included.
    std::size_t between(std::size_t low, std::size_t high) {
        return std::uniform_int_distribution<std::size_t>(low, high)(engine_);
    }
    bool flip() { return one_in(2); }
    bool one_in(std::size_t n) { return between(1, n) == 1; }

private:
    std::mt19937_64 engine_;
};

// The other end is gone, or was silent for too long.
struct Gone : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace seed_rl::check
