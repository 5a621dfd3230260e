// HTTP/2 frames written by hand, so that they can also be wrong: shared by stress.cc and fuzzers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace seed_rl::check {

using Bytes = std::vector<std::uint8_t>;
using Headers = std::vector<std::pair<std::string, std::string>>;

enum FrameType : std::uint8_t {
    kData = 0,
    kHeaders = 1,
    kRstStream = 3,
    kSettings = 4,
    kPing = 6,
    kGoaway = 7,
    kWindowUpdate = 8,
    kContinuation = 9,
};

constexpr std::uint8_t kEndStream = 1;  // of DATA and HEADERS
constexpr std::uint8_t kAck = 1;        // of SETTINGS and PING
constexpr std::uint8_t kEndHeaders = 4;
constexpr std::uint8_t kPadded = 8;

constexpr std::size_t kFrameHeaderBytes = 9;
constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

inline void append(Bytes& out, std::string_view text) {
    out.insert(out.end(), text.begin(), text.end());
}

inline void append(Bytes& out, const Bytes& more) {
    out.insert(out.end(), more.begin(), more.end());
}

inline void append_u32(Bytes& out, std::uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(value >> shift & 0xFF);
}

inline void append_frame(Bytes& out, std::uint8_t type, std::uint8_t flags, std::uint32_t stream,
                         const std::uint8_t* payload, std::size_t size) {
    for (int shift = 16; shift >= 0; shift -= 8) out.push_back(size >> shift & 0xFF);
    out.push_back(type);
    out.push_back(flags);
    append_u32(out, stream);
    out.insert(out.end(), payload, payload + size);
}

inline void append_frame(Bytes& out, std::uint8_t type, std::uint8_t flags, std::uint32_t stream,
                         const Bytes& payload) {
    append_frame(out, type, flags, stream, payload.data(), payload.size());
}

inline void append_frame(Bytes& out, std::uint8_t type, std::uint32_t stream,
                         std::uint32_t payload) {
    Bytes bytes;
    append_u32(bytes, payload);
    append_frame(out, type, 0, stream, bytes);
}

// Entries of SETTINGS: an identifier and its value each.
inline void append_settings(
    Bytes& out, const std::vector<std::pair<std::uint16_t, std::uint32_t>>& settings) {
    Bytes payload;
    for (const auto& [identifier, value] : settings) {
        payload.push_back(identifier >> 8);
        payload.push_back(identifier & 0xFF);
        append_u32(payload, value);
    }
    append_frame(out, kSettings, 0, 0, payload);
}

// HPACK: literals that enter no table, lengths as integers of a prefix of seven bits.
inline void append_literal(Bytes& out, std::string_view text) {
    std::size_t rest = text.size();
    if (rest < 127) {
        out.push_back(static_cast<std::uint8_t>(rest));
    } else {
        out.push_back(127);
        for (rest -= 127; rest >= 128; rest >>= 7) out.push_back((rest & 127) | 128);
        out.push_back(static_cast<std::uint8_t>(rest));
    }
    append(out, text);
}

inline Bytes header_block(const Headers& headers) {
    Bytes block;
    for (const auto& [name, value] : headers) {
        block.push_back(0);
        append_literal(block, name);
        append_literal(block, value);
    }
    return block;
}

inline Headers request_headers(std::string_view path) {
    return {{":method", "POST"},
            {":scheme", "http"},
            {":path", std::string(path)},
            {":authority", "localhost"},
            {"te", "trailers"},
            {"content-type", "application/grpc"}};
}

constexpr std::string_view kJoinPath = "/seed_rl.Seed/Join";
constexpr std::string_view kActPath = "/seed_rl.Seed/Act";

}  // namespace seed_rl::check
