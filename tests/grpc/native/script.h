// Reads a fuzzer's input as a script: small numbers and pieces of bytes. At its end, all are zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "frames.h"

namespace seed_rl::check {

class Script {
public:
    Script(const std::uint8_t* data, std::size_t size) : next_(data), left_(size) {}

    bool is_over() const { return left_ == 0; }

    std::uint8_t byte() {
        if (left_ == 0) return 0;
        --left_;
        return *next_++;
    }
    std::uint32_t u32() {
        std::uint32_t value = 0;
        for (int i = 0; i < 4; ++i) value = value << 8 | byte();
        return value;
    }
    std::size_t below(std::size_t bound) { return byte() % bound; }
    bool flip() { return (byte() & 1) != 0; }

    Bytes bytes(std::size_t size) {
        size = std::min(size, left_);
        Bytes taken(next_, next_ + size);
        next_ += size;
        left_ -= size;
        return taken;
    }
    Bytes rest() { return bytes(left_); }

private:
    const std::uint8_t* next_;
    std::size_t left_;
};

}  // namespace seed_rl::check
