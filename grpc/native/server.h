// The learner's end of the wire: one thread that serves all connections with epoll, and speaks
// gRPC over HTTP/2 with nghttp2. Who may join is decided elsewhere: calls are told by `next_event`
// and answered by `respond`, `accept` or `refuse`.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "batcher.h"
#include "connection.h"
#include "stream.h"

namespace seed_rl {

class Server : private Connection::Owner {
public:
    struct Options {
        std::vector<int> listeners;  // bound and listening; closed by the server
        RowFormat rows;
        std::vector<std::size_t> action_sizes;  // bytes of a row of each field of the answers
        std::size_t capacity = 0;
        Seconds batch_timeout{};
        Seconds keepalive{};
        Seconds waited_for{};  // silent for longer, a stream is not waited for
    };

    struct Event {
        enum class Kind { kJoin, kAct, kBad, kEnd };

        Kind kind;
        std::uint64_t call;
        std::vector<std::uint8_t> message;  // Join's request, or the bad message
        std::vector<std::uint8_t> started;  // kBad: which environments had begun, bool
        std::string lease;
        std::string token;
        std::string text;  // the peer, or why the call ended
    };

    struct Silence {
        std::uint64_t call;
        double secs;
    };

    // Throws std::system_error.
    explicit Server(Options options);
    ~Server() override;
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    Batcher& batcher() { return batcher_; }
    const std::vector<std::size_t>& action_sizes() const { return options_.action_sizes; }

    // Sends the answers to a batch: columns of at least as many rows as it has. Throws
    // std::logic_error where it was replied to before.
    void reply(int batch, const std::vector<const std::uint8_t*>& columns);

    // The next event; false where there was none in time.
    bool next_event(Seconds timeout, Event& event);
    void respond(std::uint64_t call, std::string_view payload);
    // False where the call has ended meanwhile: there is no kEnd event of it then.
    bool accept(std::uint64_t call, const std::string& lease, std::size_t first_env_id,
                std::size_t num_envs);
    void refuse(std::uint64_t call, int code, const std::string& details);

    // Accepted streams without a message under way.
    std::vector<Silence> silences();

    // Ends all calls and the thread. Only the first one does anything.
    void close(bool finished, Seconds grace);

private:
    using ConnectionPtr = std::shared_ptr<Connection>;
    using StreamPtr = std::shared_ptr<Stream>;

    // Connection::Owner
    std::uint64_t add_call(const StreamPtr& stream) override;
    void remove_call(std::uint64_t call) override;
    void add_event(Event event);
    void call_is_ready(Stream& stream, const std::string& peer) override;
    void message_is_bad(Stream& stream) override;
    void call_has_ended(Stream& stream, const char* reason) override;
    void wants(Connection& connection, bool input, bool output) override;

    void run();
    void wake();
    void accept_connections();
    void watch_listeners(bool watch);
    void serve(const ConnectionPtr& connection, std::uint32_t events);
    bool read(Connection& connection);
    void drop(const ConnectionPtr& connection);
    void evict_overdue();
    void tick(Clock::time_point now);
    void start_closing();
    // Does something to a call, unless it is over, and writes what follows from it.
    template <typename Action>
    void with_call(std::uint64_t call, Action action);

    const Options options_;
    Batcher batcher_;
    const Clock::duration tick_;

    int epoll_ = -1;
    int wake_ = -1;  // eventfd
    std::atomic<bool> has_overdue_{false};

    // The thread's own.
    std::vector<std::uint8_t> input_;
    Clock::time_point now_;  // of the last wake-up
    std::unordered_map<Connection*, ConnectionPtr> connections_;
    bool is_paused_ = false;  // too many files are open to accept connections
    bool is_closing_ = false;

    // For `silences`, which another thread asks for.
    std::mutex calls_mutex_;
    std::unordered_map<std::uint64_t, StreamPtr> calls_;
    std::uint64_t num_calls_ = 0;

    std::mutex events_mutex_;
    std::condition_variable events_changed_;
    std::deque<Event> events_;

    std::mutex close_mutex_;
    bool close_was_called_ = false;
    std::atomic<bool> close_is_wanted_{false};
    bool is_finished_ = false;
    Clock::time_point close_by_;
    std::thread thread_;
};

}  // namespace seed_rl
