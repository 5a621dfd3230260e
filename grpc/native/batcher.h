// Gathers the messages of many streams into batches: where the server's threads and the learner's
// threads meet.
//
// The rows of a message are reserved in a batch when it starts to arrive, so that its bytes can be
// copied to where the learner will read them. A batch is handed out once it is closed and all that
// was reserved in it is there. It closes when it is full, when no stream is left that could add to
// it, or, once somebody waits for it, `timeout` after its first row. A message that is still
// arriving then is taken out again, by its stream, and goes on in memory of its own.
//
// Batches are handed out in the order in which they closed: of two messages of one environment,
// sent over an old and a new stream, the learner sees the older one first.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace seed_rl {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

class Batch;

// A stream as the batcher sees it. It has at most one message in batches. Guarded by the batcher.
class Source : public std::enable_shared_from_this<Source> {
public:
    virtual ~Source() = default;

private:
    friend class Batcher;

    bool is_open_ = false;
    bool is_awaited_ = false;  // a message is expected at any moment
    Clock::time_point since_;  // of its opening or last answer
    Batch* batch_ = nullptr;   // that holds its message until it is answered
    std::size_t call_ = 0;     // which of its calls
};

// The rows of one message in a batch.
struct Call {
    enum class State : std::uint8_t { kFilling, kComplete, kDropped };

    std::shared_ptr<Source> source;
    std::size_t first;
    std::size_t n;
    State state;
};

// The columns of up to `capacity` rows, and who sent them. Used again and again.
class Batch {
public:
    Batch(int index, const std::vector<std::size_t>& row_sizes, std::size_t capacity);

    int index() const { return index_; }
    // The bytes of a field, [capacity * bytes of a row], aligned to 64 bytes.
    std::uint8_t* column(std::size_t field) { return columns_[field]; }
    // Which rows are the first of their environment on a stream, [capacity].
    std::uint8_t* restarted() { return columns_.back(); }

private:
    friend class Batcher;

    enum class State { kFree, kOpen, kClosed, kTaken };

    struct Free {
        void operator()(void* memory) const { std::free(memory); }
    };

    // Moves the rows together that are to be kept.
    void compact(const std::vector<std::size_t>& row_sizes);

    const int index_;
    std::unique_ptr<void, Free> memory_;
    std::vector<std::uint8_t*> columns_;  // the fields', and `restarted`

    State state_ = State::kFree;
    std::size_t size_ = 0;
    std::size_t num_filling_ = 0;
    std::size_t num_complete_ = 0;
    std::size_t num_dropped_ = 0;
    std::vector<Call> calls_;
    Clock::time_point deadline_;
    bool is_overdue_ = false;   // what is still arriving has to leave
    bool is_held_ = false;      // the thread that took it still reads it
    bool is_replied_ = false;
};

class Batcher {
public:
    struct Taken {
        enum class Outcome { kBatch, kTimeout, kClosed };

        Outcome outcome;
        Batch* batch = nullptr;
        std::size_t size = 0;
        std::size_t num_restarted = 0;
    };

    struct Reservation {
        Batch* batch;
        std::size_t first;
    };

    // `row_sizes`: the bytes of one row of each field. `call_for_eviction` is called from a
    // learner's thread when `overdue` has something to tell.
    Batcher(std::vector<std::size_t> row_sizes, std::size_t capacity, Seconds timeout,
            std::function<void()> call_for_eviction);

    std::size_t capacity() const { return capacity_; }
    const std::vector<std::size_t>& row_sizes() const { return row_sizes_; }

    // Called by the server's threads. A source is used by one thread at a time.

    void open(Source& source);
    // Forgets a source. A complete message that nobody took yet is handed out, not answered.
    void end(Source& source);
    // Rows for a message that starts to arrive, at most `capacity`.
    Reservation reserve(const std::shared_ptr<Source>& source, std::size_t n);
    // The rows are there.
    void complete(Source& source);
    // The rows are not to be handed out.
    void drop(Source& source);
    // Those whose messages arrive too slowly for their batch: each has to be dropped.
    std::vector<std::shared_ptr<Source>> overdue();
    bool is_overdue(const Source& source);
    // Stops waiting for a source that has sent nothing since then.
    void forget_if_silent(Source& source, Clock::time_point since);
    // Since when it has sent no message; Clock::time_point::max() where one is under way.
    Clock::time_point silent_since(const Source& source);

    // Called by the learner's threads.

    // The next batch. The calling thread gives back the one that it took before.
    Taken take(Seconds timeout);
    // Exchanges `calls`, which is empty, for those of a batch whose answers are about to be sent.
    // Throws std::logic_error where it was replied to before, or isn't taken.
    void replied(int index, std::vector<Call>& calls);
    Batch& batch(int index);
    void close();
    void count(std::uint64_t& rows, std::uint64_t& batches);

private:
    // All with the mutex held.
    Batch& open_batch();
    void seal(Batch& batch);
    void settle(Batch& batch);
    void stop_waiting(Source& source);
    void watch_on();
    void give_back();
    void free_if_unused(Batch& batch);
    void drop_locked(Source& source);

    const std::vector<std::size_t> row_sizes_;
    const std::size_t capacity_;
    const Clock::duration timeout_;
    const std::function<void()> call_for_eviction_;

    std::mutex mutex_;  // guards all that follows
    std::condition_variable changed_;
    std::deque<std::unique_ptr<Batch>> batches_;  // by index; grows to as many as are under way
    std::vector<Batch*> free_;
    Batch* open_ = nullptr;
    std::deque<Batch*> closed_;  // in the order of closing
    std::unordered_map<std::thread::id, Batch*> held_;
    std::size_t num_awaited_ = 0;
    std::size_t num_waiting_ = 0;  // the learner's threads
    std::uint64_t num_rows_ = 0;
    std::uint64_t num_batches_ = 0;
    bool is_closed_ = false;
};

}  // namespace seed_rl
