// One call of an actor, seen from the server: reads its messages into batches and sends answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batcher.h"
#include "wire.h"

namespace seed_rl {

class Connection;

// What the server knows of the rows that actors send.
struct RowFormat {
    struct Floats {
        std::size_t field;
        std::size_t bytes;  // of a value: 2, 4 or 8
    };

    // Field 0 is env_id, int32; field 1 is step_type, uint8.
    std::vector<std::size_t> sizes;  // bytes of a row, by field
    std::vector<Floats> floats;      // fields whose values have to be finite
    std::size_t row_bytes = 0;
    std::size_t max_message_bytes = 0;
};

// All but the constructor with the connection's mutex held.
class Stream : public Source {
public:
    enum class Method { kUnknown, kJoin, kAct };
    enum class Stage {
        kHeaders,   // they are arriving
        kRequest,   // Join only: its message is arriving
        kDecision,  // Python decides
        kOpen,      // accepted
        kEnding,    // a status is on its way
    };

    Stream(std::weak_ptr<Connection> connection, std::int32_t id,
           const RowFormat& format, Batcher& batcher);

    // What one may send in a batch from now on.
    void accept(std::size_t first_env_id, std::size_t num_envs);

    // Takes bytes of messages. Returns how many were dealt with; the others are kept until the
    // message before them is answered.
    std::size_t receive(const std::uint8_t* data, std::size_t size);
    // Goes on with what was kept. Returns how many bytes were dealt with.
    std::size_t resume();

    // A message that arrives too slowly leaves its batch and goes on in memory of its own.
    void evict();
    bool has_backlog() const { return !backlog_.empty(); }

    // Makes the answer to the message under way: rows first..first+n of these columns.
    void answer(const std::vector<const std::uint8_t*>& columns,
                const std::vector<std::size_t>& sizes, std::size_t first, std::size_t n);
    void answer(std::string_view payload);

    const std::weak_ptr<Connection> connection;
    const std::int32_t id;
    std::uint64_t call = 0;  // its number for the server

    // Request headers.
    Method method = Method::kUnknown;
    std::string http_method, content_type, encoding, token, lease;
    std::size_t header_bytes = 0;
    bool has_deadline = false;
    bool has_bad_timeout = false;
    Clock::time_point deadline;

    Stage stage = Stage::kHeaders;
    bool is_closed = false;        // HTTP/2's stream is gone
    bool is_half_closed = false;   // the actor sends no more
    bool has_sent_headers = false;
    bool was_accepted = false;
    bool is_busy = false;          // a message waits for its answer

    // Of the answer, and how much of it went out.
    std::vector<std::uint8_t> outgoing;
    std::size_t num_sent = 0;
    bool is_drained() const { return num_sent == outgoing.size(); }

    // What is wrong with what was received: a status to end with...
    int failure_code = kOk;
    std::string failure;
    // ...or a message that Python has to explain.
    bool is_bad = false;
    std::vector<std::uint8_t> bad_message;
    // Join's request.
    std::vector<std::uint8_t> request;
    bool has_request = false;

    int status_code = kOk;
    std::string status_message;
    bool is_finished = false;  // training is over
    bool is_end_told = false;

    const std::vector<std::uint8_t>& started() const { return started_; }

private:
    enum class Phase { kPrefix, kFieldHeader, kColumns, kWhole };

    std::size_t land(const std::uint8_t* data, std::size_t size);
    void end_of_prefix();
    void end_of_field_header();
    void place_rows();
    void end_of_rows();
    void end_of_whole();
    void collect_whole(std::vector<std::uint8_t> start);
    void next_message();
    bool rows_are_good();
    // The message as it was sent, as far as it was received, from the batch's columns.
    std::vector<std::uint8_t> gather() const;
    std::size_t remaining(std::size_t field) const;

    const RowFormat& format_;
    Batcher& batcher_;
    std::size_t first_env_id_ = 0;
    std::size_t num_envs_ = 0;
    std::vector<std::uint8_t> started_;  // bool, [num_envs]
    std::size_t num_started_ = 0;
    std::vector<std::uint64_t> seen_;    // in which message an environment was seen last
    std::uint64_t num_messages_ = 0;

    std::vector<std::uint8_t> backlog_;  // received, not dealt with
    std::size_t backlog_start_ = 0;

    Phase phase_ = Phase::kPrefix;
    std::uint8_t prefix_[kPrefixBytes];
    std::size_t num_prefix_bytes_ = 0;
    std::size_t message_bytes_ = 0;
    FieldHeader field_header_;
    std::vector<std::uint8_t> whole_;
    bool is_evicted_ = false;
    std::size_t n_ = 0;
    Batch* batch_ = nullptr;
    std::size_t first_ = 0;
    std::size_t field_ = 0;
    std::size_t field_offset_ = 0;
};

}  // namespace seed_rl
