// The rows that the native checks send: each tells who sent it and when, so that whoever finds it
// in a batch can tell what all its bytes have to be, and what its answer is.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "frames.h"
#include "stream.h"
#include "wire.h"

namespace seed_rl::check {

struct Row {
    std::int32_t env_id = 0;
    std::uint32_t stream = 0;  // counts the streams of an environment
    std::uint32_t step = 0;    // counts its steps on that stream
    bool is_poison = false;    // must not reach a batch

    std::uint64_t stamp() const { return std::uint64_t{stream} << 32 | step; }
    std::uint8_t step_type() const { return step == 0 ? 0 : 1 + step % 3; }
    float reward() const { return static_cast<float>(step) * 0.5f - static_cast<float>(env_id); }
    double value() const { return static_cast<double>(stamp()) * 1.5 + env_id; }
    std::uint16_t half() const { return static_cast<std::uint16_t>(stamp() * 31 & 0x3BFF); }
    std::uint8_t byte(std::size_t i) const {
        return static_cast<std::uint8_t>((stamp() + i) * 0x9E3779B97F4A7C15u >> 56);
    }
    // What the learner answers: the stamp in disguise.
    std::uint64_t answer() const { return stamp() * 3 + static_cast<std::uint32_t>(env_id); }
};

// env_id, step_type, reward, raw_reward; a stamp, a field without bytes, one of float64, one of
// float16, one of an odd size, and whether the row is poison.
enum Field { kEnvId, kStepType, kReward, kRawReward, kStamp, kNothing, kDouble, kHalf, kBlob,
             kPoison, kNumFields };
constexpr std::size_t kBlobBytes = 7;

inline RowFormat row_format(std::size_t max_rows) {
    RowFormat format;
    format.sizes = {4, 1, 4, 4, 8, 0, 8, 2, kBlobBytes, 1};
    format.floats = {{kReward, 4}, {kRawReward, 4}, {kDouble, 8}, {kHalf, 2}};
    for (const std::size_t size : format.sizes) format.row_bytes += size;
    format.max_message_bytes = (max_rows + 1) * format.row_bytes + 64;
    return format;
}

inline std::vector<std::size_t> answer_sizes() { return {8, 4, 1}; }

template <typename Value>
void append_value(Bytes& out, Value value) {
    const auto* start = reinterpret_cast<const std::uint8_t*>(&value);
    out.insert(out.end(), start, start + sizeof value);
}

inline Bytes columns_of(const std::vector<Row>& rows) {
    Bytes out;
    for (const Row& row : rows) append_value(out, row.env_id);
    for (const Row& row : rows) append_value(out, row.step_type());
    for (const Row& row : rows) append_value(out, row.reward());
    for (const Row& row : rows) append_value(out, -row.reward());
    for (const Row& row : rows) append_value(out, row.stamp());
    for (const Row& row : rows) append_value(out, row.value());
    for (const Row& row : rows) append_value(out, row.half());
    for (const Row& row : rows) {
        for (std::size_t i = 0; i < kBlobBytes; ++i) out.push_back(row.byte(i));
    }
    for (const Row& row : rows) out.push_back(row.is_poison);
    return out;
}

// The serialised protobuf message.
inline Bytes protobuf_of(const Bytes& columns) {
    Bytes message{kColumnsTag};
    std::size_t rest = columns.size();
    for (; rest > 0x7F; rest >>= 7) message.push_back(static_cast<std::uint8_t>(rest | 0x80));
    message.push_back(static_cast<std::uint8_t>(rest));
    append(message, columns);
    return message;
}

inline Bytes framed(const Bytes& message, std::uint8_t compressed = 0) {
    Bytes out{compressed};
    append_u32(out, static_cast<std::uint32_t>(message.size()));
    append(out, message);
    return out;
}

template <typename Value>
Value value_at(const std::uint8_t* column, std::size_t row) {
    Value value;
    std::memcpy(&value, column + row * sizeof value, sizeof value);
    return value;
}

// The row of a batch that these columns hold. Null, or what is wrong with it.
template <typename Columns>
const char* read_row(const Columns& column, std::size_t i, Row& row) {
    row.env_id = value_at<std::int32_t>(column(kEnvId), i);
    const auto stamp = value_at<std::uint64_t>(column(kStamp), i);
    row.stream = static_cast<std::uint32_t>(stamp >> 32);
    row.step = static_cast<std::uint32_t>(stamp);
    if (column(kStepType)[i] != row.step_type()) return "step_type";
    if (value_at<float>(column(kReward), i) != row.reward()) return "reward";
    if (value_at<float>(column(kRawReward), i) != -row.reward()) return "raw_reward";
    if (value_at<double>(column(kDouble), i) != row.value()) return "double";
    if (value_at<std::uint16_t>(column(kHalf), i) != row.half()) return "half";
    for (std::size_t j = 0; j < kBlobBytes; ++j) {
        if (column(kBlob)[i * kBlobBytes + j] != row.byte(j)) return "blob";
    }
    if (column(kPoison)[i] != 0) return "poison: a bad or unfinished message was handed out";
    return nullptr;
}

}  // namespace seed_rl::check
