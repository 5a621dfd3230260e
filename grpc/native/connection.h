// One connection of the server: an nghttp2 session and its streams.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "stream.h"

namespace seed_rl {

// All methods but the constructor with `mutex` held, which is locked before the batcher's.
class Connection : public std::enable_shared_from_this<Connection> {
public:
    // What the connection tells the server. Called with the connection's mutex held.
    class Owner {
    public:
        virtual ~Owner() = default;
        // A number for a new call, under which it can be found until it is removed.
        virtual std::uint64_t add_call(const std::shared_ptr<Stream>& stream) = 0;
        virtual void remove_call(std::uint64_t call) = 0;
        // Join's request is there, or Act wants to begin.
        virtual void call_is_ready(Stream& stream, const std::string& peer) = 0;
        virtual void message_is_bad(Stream& stream) = 0;
        // An accepted call is over: "left", "lost", "refused" or "dismissed".
        virtual void call_has_ended(Stream& stream, const char* reason) = 0;
        // Which of input and output it is to be woken for.
        virtual void wants(Connection& connection, bool input, bool output) = 0;
    };

    // `fd` is closed with the connection; below 0, what is written is only collected.
    Connection(int fd, std::string peer, Owner& owner, const RowFormat& format, Batcher& batcher);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    std::mutex mutex;

    int fd() const { return fd_; }

    // Reads bytes from the peer. False where the connection can't go on.
    bool receive(const std::uint8_t* data, std::size_t size, Clock::time_point now);
    // Writes what can be written. False where the connection can't go on.
    bool flush();
    // What remains to be written.
    std::size_t num_pending_bytes() const { return output_.size() - output_start_; }

    // So much that nothing more should be read, until the peer has read some of it.
    bool is_clogged() const { return num_pending_bytes() > kMaxPendingBytes; }

    void respond(Stream& stream, std::string_view payload);
    // False where the call has ended meanwhile.
    bool accept(Stream& stream, const std::string& lease, std::size_t first_env_id,
                std::size_t num_envs);
    // Ends a call with a status, after the answer that is under way. `reason` as in call_has_ended.
    void end(Stream& stream, int code, const std::string& details, const char* reason,
             bool is_finished = false);
    void answer(Stream& stream, const std::vector<const std::uint8_t*>& columns,
                const std::vector<std::size_t>& sizes, std::size_t first, std::size_t n);
    void evict(Stream& stream);

    // Pings a silent peer. False where it hasn't answered the one before in time.
    bool keep_alive(Clock::time_point now, Clock::duration keepalive);
    // Ends calls whose deadline has passed, and stops waiting for those silent since then.
    void look_after(Clock::time_point now, Clock::time_point silent_since);
    // Ends all calls, and lets none begin.
    void shut_down(bool is_finished);
    // All was said after shut_down.
    bool is_done() const { return streams_.empty() && num_pending_bytes() == 0; }
    void finish_writing();
    // The peer is gone.
    void lose();

    struct Callbacks;  // nghttp2's

private:
    friend struct Callbacks;

    static constexpr std::size_t kMaxPendingBytes = 1 << 20;

    void begin(std::int32_t id);
    void end_of_headers(Stream& stream);
    void half_close(Stream& stream);
    // Deals with what receiving has brought.
    void react(Stream& stream, std::size_t num_consumed);
    void go_on(Stream& stream);
    void send_headers(Stream& stream, const std::string& lease);
    void send_status_only(Stream& stream);
    void send_http_status(Stream& stream, const char* status);
    void close_stream(Stream& stream, std::uint32_t error_code);
    void remove(Stream& stream, const char* reason);
    bool write();
    void want(bool output);

    int fd_;
    const std::string peer_;
    Owner& owner_;
    const RowFormat& format_;
    Batcher& batcher_;
    nghttp2_session* session_ = nullptr;
    std::unordered_map<std::int32_t, std::shared_ptr<Stream>> streams_;
    std::vector<std::int32_t> drained_;  // streams that go on now that their answer went out
    std::vector<std::uint8_t> output_;
    std::size_t output_start_ = 0;
    bool is_waiting_to_write_ = false;
    bool is_waiting_to_read_ = true;
    bool is_shut_down_ = false;
    Clock::time_point last_read_;
    Clock::time_point pinged_;
    bool is_pinged_ = false;
};

}  // namespace seed_rl
