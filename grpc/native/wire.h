// What both ends of the wire share: how gRPC frames a message and spells a status.
//
// A message on an HTTP/2 stream is gRPC's prefix (a flag of compression and the length, big-endian)
// and the serialised protobuf message. Ours has one field, `columns` of type bytes: a tag, its
// length as a varint, and the columns of n rows, field after field.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace seed_rl {

enum StatusCode : int {
    kOk = 0,
    kCancelled = 1,
    kUnknown = 2,
    kInvalidArgument = 3,
    kDeadlineExceeded = 4,
    kPermissionDenied = 7,
    kResourceExhausted = 8,
    kUnimplemented = 12,
    kInternal = 13,
    kUnavailable = 14,
    kUnauthenticated = 16,
};

constexpr std::size_t kPrefixBytes = 5;
constexpr std::uint8_t kColumnsTag = 0x0A;
constexpr std::size_t kMaxFieldHeaderBytes = 11;  // the tag and a varint of 64 bits
constexpr std::size_t kMaxHeaderBytes = kPrefixBytes + kMaxFieldHeaderBytes;

inline void put_prefix(std::uint8_t* out, std::uint32_t message_bytes) {
    out[0] = 0;  // not compressed
    for (int i = 0; i < 4; ++i) out[1 + i] = static_cast<std::uint8_t>(message_bytes >> (24 - 8 * i));
}

// The length that a prefix tells.
inline std::uint32_t message_length(const std::uint8_t* prefix) {
    return std::uint32_t{prefix[1]} << 24 | std::uint32_t{prefix[2]} << 16 |
           std::uint32_t{prefix[3]} << 8 | prefix[4];
}

// Writes what stands before columns of that many bytes, at most kMaxHeaderBytes. Returns its size.
inline std::size_t put_header(std::uint8_t* out, std::size_t columns_bytes) {
    std::uint8_t* end = out + kPrefixBytes;
    *end++ = kColumnsTag;
    std::size_t rest = columns_bytes;
    for (; rest > 0x7F; rest >>= 7) *end++ = static_cast<std::uint8_t>(rest | 0x80);
    *end++ = static_cast<std::uint8_t>(rest);
    const std::size_t header_bytes = end - out;
    put_prefix(out, static_cast<std::uint32_t>(header_bytes - kPrefixBytes + columns_bytes));
    return header_bytes;
}

// The tag and length of the field `columns`, read byte by byte.
class FieldHeader {
public:
    enum class State { kPartial, kComplete, kWrong };

    State push(std::uint8_t byte) {
        bytes_[size_++] = byte;
        if (size_ == 1) return byte == kColumnsTag ? State::kPartial : State::kWrong;
        const int shift = 7 * static_cast<int>(size_ - 2);
        // Of the last byte, one bit is left of the 64.
        if (size_ == kMaxFieldHeaderBytes && byte > 1) return State::kWrong;
        length_ |= std::uint64_t{byte & 0x7Fu} << shift;
        return byte < 0x80 ? State::kComplete : State::kPartial;
    }

    const std::uint8_t* bytes() const { return bytes_; }
    std::size_t size() const { return size_; }
    std::uint64_t length() const { return length_; }

private:
    std::uint8_t bytes_[kMaxFieldHeaderBytes];
    std::size_t size_ = 0;
    std::uint64_t length_ = 0;
};

// grpc-message: all but printable ASCII is percent-encoded, and so is the percent sign.
inline std::string percent_encode(std::string_view text) {
    static constexpr char kDigits[] = "0123456789ABCDEF";
    std::string encoded;
    encoded.reserve(text.size());
    for (const char character : text) {
        const auto byte = static_cast<std::uint8_t>(character);
        if (byte >= 0x20 && byte <= 0x7E && byte != '%') {
            encoded += character;
        } else {
            encoded += '%';
            encoded += kDigits[byte >> 4];
            encoded += kDigits[byte & 15];
        }
    }
    return encoded;
}

// The inverse; what is no escape is left as it is.
inline std::string percent_decode(std::string_view text) {
    const auto digit = [](char character) {
        if (character >= '0' && character <= '9') return character - '0';
        if (character >= 'a' && character <= 'f') return character - 'a' + 10;
        if (character >= 'A' && character <= 'F') return character - 'A' + 10;
        return -1;
    };
    std::string decoded;
    decoded.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 &&
            digit(text[i + 2]) >= 0) {
            decoded += static_cast<char>(digit(text[i + 1]) << 4 | digit(text[i + 2]));
            i += 2;
        } else {
            decoded += text[i];
        }
    }
    return decoded;
}

// A header of which nghttp2 makes a copy.
inline nghttp2_nv header(std::string_view name, std::string_view value) {
    return {reinterpret_cast<std::uint8_t*>(const_cast<char*>(name.data())),
            reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data())), name.size(),
            value.size(), NGHTTP2_NV_FLAG_NONE};
}

inline std::string_view view(const std::uint8_t* data, std::size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

}  // namespace seed_rl
