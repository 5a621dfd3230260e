#include "stream.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace seed_rl {

namespace {

constexpr std::uint8_t kFirst = 0;
constexpr std::uint8_t kLastStepType = 3;

// Infinities and NaNs are the floats whose exponent has all bits set. The loops are written to be
// vectorised: no early exit.
template <typename Bits>
bool all_finite(const std::uint8_t* data, std::size_t count, Bits exponent) {
    Bits bad = 0;
    for (std::size_t i = 0; i < count; ++i) {
        Bits bits;
        std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
        bad |= static_cast<Bits>((bits & exponent) == exponent);
    }
    return bad == 0;
}

bool all_finite(const std::uint8_t* data, std::size_t bytes, std::size_t value_bytes) {
    switch (value_bytes) {
        case 2:
            return all_finite<std::uint16_t>(data, bytes / 2, 0x7C00);
        case 4:
            return all_finite<std::uint32_t>(data, bytes / 4, 0x7F800000);
        default:
            return all_finite<std::uint64_t>(data, bytes / 8, 0x7FF0000000000000);
    }
}

}  // namespace

Stream::Stream(std::weak_ptr<Connection> connection, std::int32_t id,
               const RowFormat& format, Batcher& batcher)
    : connection(std::move(connection)), id(id), format_(format), batcher_(batcher) {}

void Stream::accept(std::size_t first_env_id, std::size_t num_envs) {
    first_env_id_ = first_env_id;
    num_envs_ = num_envs;
    started_.assign(num_envs, 0);
    seen_.assign(num_envs, 0);
    stage = Stage::kOpen;
    was_accepted = true;
    batcher_.open(*this);
}

std::size_t Stream::receive(const std::uint8_t* data, std::size_t size) {
    if (stage == Stage::kEnding) return size;  // nobody wants it any more
    std::size_t done = 0;
    if (backlog_.empty()) done = land(data, size);
    if (stage == Stage::kEnding || failure_code != kOk || is_bad) return size;
    backlog_.insert(backlog_.end(), data + done, data + size);
    return done;
}

std::size_t Stream::resume() {
    if (backlog_.empty()) return 0;
    const std::size_t done = land(backlog_.data() + backlog_start_, backlog_.size() - backlog_start_);
    backlog_start_ += done;
    if (backlog_start_ == backlog_.size()) {
        backlog_.clear();
        backlog_start_ = 0;
    } else if (backlog_start_ > backlog_.size() / 2) {
        backlog_.erase(backlog_.begin(), backlog_.begin() + static_cast<std::ptrdiff_t>(backlog_start_));
        backlog_start_ = 0;
    }
    return done;
}

std::size_t Stream::land(const std::uint8_t* data, std::size_t size) {
    std::size_t done = 0;
    const auto may_go_on = [this] {
        return !is_busy && !is_bad && failure_code == kOk &&
               (stage == Stage::kOpen || (stage == Stage::kRequest && !has_request));
    };
    while (done < size && may_go_on()) {
        const std::uint8_t* next = data + done;
        const std::size_t left = size - done;
        switch (phase_) {
            case Phase::kPrefix: {
                const std::size_t take = std::min(left, kPrefixBytes - num_prefix_bytes_);
                std::memcpy(prefix_ + num_prefix_bytes_, next, take);
                num_prefix_bytes_ += take;
                done += take;
                if (num_prefix_bytes_ == kPrefixBytes) end_of_prefix();
                break;
            }
            case Phase::kFieldHeader: {
                ++done;
                const auto state = field_header_.push(*next);
                if (state == FieldHeader::State::kComplete) {
                    end_of_field_header();
                } else if (state == FieldHeader::State::kWrong ||
                           field_header_.size() == message_bytes_) {
                    collect_whole({field_header_.bytes(),
                                   field_header_.bytes() + field_header_.size()});
                }
                break;
            }
            case Phase::kColumns: {
                const std::size_t take = std::min(left, remaining(field_));
                std::memcpy(batch_->column(field_) + first_ * format_.sizes[field_] + field_offset_,
                            next, take);
                field_offset_ += take;
                done += take;
                while (field_ < format_.sizes.size() && remaining(field_) == 0) {
                    ++field_;
                    field_offset_ = 0;
                }
                if (field_ == format_.sizes.size()) end_of_rows();
                break;
            }
            case Phase::kWhole: {
                const std::size_t take = std::min(left, message_bytes_ - whole_.size());
                whole_.insert(whole_.end(), next, next + take);
                done += take;
                if (whole_.size() == message_bytes_) end_of_whole();
                break;
            }
        }
    }
    return done;
}

void Stream::end_of_prefix() {
    message_bytes_ = message_length(prefix_);
    if (prefix_[0] != 0) {
        failure_code = kInternal;
        failure = "Compression bit set but no encoding configured";
    } else if (message_bytes_ > format_.max_message_bytes) {
        failure_code = kResourceExhausted;
        failure = "SERVER: Received message larger than max (" + std::to_string(message_bytes_) +
                  " vs. " + std::to_string(format_.max_message_bytes) + ")";
    } else if (method == Method::kJoin || message_bytes_ == 0) {
        collect_whole({});
    } else {
        field_header_ = FieldHeader();
        phase_ = Phase::kFieldHeader;
    }
}

void Stream::end_of_field_header() {
    const std::uint64_t length = field_header_.length();
    const std::uint64_t n = length / format_.row_bytes;
    if (field_header_.size() + length != message_bytes_ || length % format_.row_bytes != 0 ||
        n == 0 || n > num_envs_) {
        collect_whole({field_header_.bytes(), field_header_.bytes() + field_header_.size()});
        return;
    }
    n_ = static_cast<std::size_t>(n);
    place_rows();
    phase_ = Phase::kColumns;
}

void Stream::place_rows() {
    const auto reservation =
        batcher_.reserve(shared_from_this(), n_);
    batch_ = reservation.batch;
    first_ = reservation.first;
    field_ = 0;
    field_offset_ = 0;
}

void Stream::end_of_rows() {
    if (!rows_are_good()) {
        bad_message = gather();
        is_bad = true;
        batcher_.drop(*this);
        batch_ = nullptr;
        return;
    }
    next_message();
    is_busy = true;
    batch_ = nullptr;
    batcher_.complete(*this);
}

// Rows that were evicted are placed anew; all else that is collected is a mistake, or Join's.
void Stream::end_of_whole() {
    if (method == Method::kJoin) {
        request = std::move(whole_);
        has_request = true;
        next_message();
        return;
    }
    if (!is_evicted_) {
        bad_message = std::move(whole_);
        is_bad = true;
        return;
    }
    is_evicted_ = false;
    place_rows();
    const std::uint8_t* source = whole_.data() + field_header_.size();
    for (std::size_t field = 0; field < format_.sizes.size(); ++field) {
        const std::size_t row_size = format_.sizes[field];
        std::memcpy(batch_->column(field) + first_ * row_size, source, n_ * row_size);
        source += n_ * row_size;
    }
    field_ = format_.sizes.size();
    end_of_rows();
    whole_.clear();
}

void Stream::collect_whole(std::vector<std::uint8_t> start) {
    // Memory is taken as bytes arrive, not for what a prefix promises.
    whole_ = std::move(start);
    phase_ = Phase::kWhole;
    if (whole_.size() == message_bytes_) end_of_whole();
}

void Stream::next_message() {
    phase_ = Phase::kPrefix;
    num_prefix_bytes_ = 0;
    ++num_messages_;
}

void Stream::evict() {
    if (batch_ == nullptr || !batcher_.is_overdue(*this)) return;
    whole_ = gather();
    batcher_.drop(*this);
    batch_ = nullptr;
    is_evicted_ = true;
    phase_ = Phase::kWhole;
}

std::size_t Stream::remaining(std::size_t field) const {
    return n_ * format_.sizes[field] - (field == field_ ? field_offset_ : 0);
}

std::vector<std::uint8_t> Stream::gather() const {
    std::vector<std::uint8_t> message(field_header_.bytes(),
                                      field_header_.bytes() + field_header_.size());
    for (std::size_t field = 0; field < format_.sizes.size() && field <= field_; ++field) {
        const std::size_t row_size = format_.sizes[field];
        const std::uint8_t* start = batch_->column(field) + first_ * row_size;
        const std::size_t size = field < field_ ? n_ * row_size : field_offset_;
        message.insert(message.end(), start, start + size);
    }
    return message;
}

// As codec.RowCheck does, which finds the words for what is wrong.
bool Stream::rows_are_good() {
    const auto* ids =
        reinterpret_cast<const std::int32_t*>(batch_->column(0) + first_ * format_.sizes[0]);
    const std::uint8_t* step_types = batch_->column(1) + first_;
    const auto mark = num_messages_ + 1;
    const auto first_env_id = static_cast<std::int32_t>(first_env_id_);
    bool is_good = true;
    for (std::size_t i = 0; i < n_; ++i) {
        const auto index = static_cast<std::uint32_t>(ids[i]) - static_cast<std::uint32_t>(first_env_id);
        if (index >= num_envs_ || seen_[index] == mark) return false;
        seen_[index] = mark;
        is_good = is_good && step_types[i] <= kLastStepType;
    }
    if (!is_good) return false;
    for (const auto& floats : format_.floats) {
        const std::size_t row_size = format_.sizes[floats.field];
        if (!all_finite(batch_->column(floats.field) + first_ * row_size, n_ * row_size,
                        floats.bytes)) {
            return false;
        }
    }
    std::uint8_t* restarted = batch_->restarted() + first_;
    if (num_started_ == num_envs_) {
        std::memset(restarted, 0, n_);
        return true;
    }
    for (std::size_t i = 0; i < n_; ++i) {
        const auto index = static_cast<std::size_t>(ids[i] - first_env_id);
        restarted[i] = started_[index] == 0;
        if (restarted[i] != 0 && step_types[i] != kFirst) return false;
    }
    for (std::size_t i = 0; i < n_; ++i) {
        std::uint8_t& started = started_[static_cast<std::size_t>(ids[i] - first_env_id)];
        num_started_ += started == 0;
        started = 1;
    }
    return true;
}

void Stream::answer(const std::vector<const std::uint8_t*>& columns,
                    const std::vector<std::size_t>& sizes, std::size_t first, std::size_t n) {
    std::size_t row_bytes = 0;
    for (const std::size_t size : sizes) row_bytes += size;
    std::uint8_t header[kMaxHeaderBytes];
    const std::size_t header_bytes = put_header(header, n * row_bytes);
    outgoing.assign(header, header + header_bytes);
    for (std::size_t field = 0; field < sizes.size(); ++field) {
        const std::uint8_t* start = columns[field] + first * sizes[field];
        outgoing.insert(outgoing.end(), start, start + n * sizes[field]);
    }
    num_sent = 0;
}

void Stream::answer(std::string_view payload) {
    outgoing.resize(kPrefixBytes + payload.size());
    put_prefix(outgoing.data(), static_cast<std::uint32_t>(payload.size()));
    std::memcpy(outgoing.data() + kPrefixBytes, payload.data(), payload.size());
    num_sent = 0;
}

}  // namespace seed_rl
