// A blocking client: one connection to the learner, on which the caller's own thread does the
// input and output, so that a round trip needs no other thread to wake up.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client_session.h"

namespace seed_rl {

// Used by one thread at a time; only close() may be called from any. While the caller is elsewhere,
// a thread of the client's own answers pings and finishes what send() could not write.
class Client {
public:
    using Clock = std::chrono::steady_clock;
    enum class Outcome { kDone, kEnded, kDeadline, kInterrupted };
    // Asked at least five times a second while a call waits; true ends the wait.
    using Interrupted = bool (*)();

    struct Column {
        const void* data;
        std::size_t bytes;
    };

    // path: of a unix socket; empty for host and port. Connects with the first call.
    // keepalive_secs: after that long without input the peer is pinged, and after as long again
    // taken for dead.
    Client(std::string path, std::string host, int port, double keepalive_secs);
    ~Client();
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    // Asks and waits for the end of the call. kDone: `answer` is the message. kEnded: see status().
    Outcome unary(const std::string& method, const Metadata& metadata, const std::string& message,
                  double timeout_secs, Interrupted interrupted, std::vector<std::uint8_t>& answer);
    // Opens a stream. kDone: it is open, its headers have arrived. kEnded: see status().
    Outcome open(const std::string& method, const Metadata& metadata, double timeout_secs,
                 Interrupted interrupted, Metadata& headers);

    // Copies the columns into a message and writes as much of it as goes at once. Does nothing
    // where the stream has ended: receive() tells why.
    //   max_answer_bytes: a larger answer ends the stream.
    //   is_push: the client's own thread goes on with it; otherwise receive() follows at once.
    void send(const std::vector<Column>& columns, std::size_t max_answer_bytes, bool is_push);
    // The same with a message that is whole already, but for gRPC's prefix.
    void send_message(const void* message, std::size_t bytes, std::size_t max_answer_bytes,
                      bool is_push);
    // Waits for the answer. kDeadline and kInterrupted: the stream is over, too.
    Outcome receive(double timeout_secs, Interrupted interrupted,
                    std::vector<std::uint8_t>& answer);
    // How the call ended.
    Status status();

    // Ends the stream and the connection, and every wait for them.
    void close();

private:
    void close(Clock::duration patience);
    bool is_forked() const;
    Outcome connect(Clock::time_point deadline, Interrupted interrupted);
    void disconnect();
    Outcome start(const std::string& method, const Metadata& metadata, double timeout_secs,
                  Clock::time_point deadline, Interrupted interrupted);
    Outcome end_unstarted(int code, std::string details);
    template <typename Done>
    Outcome wait(Done is_done, Clock::time_point deadline, Interrupted interrupted);
    std::uint8_t* begin_message(std::size_t bytes);
    void end_message(std::size_t max_answer_bytes, bool is_push);
    void write_output();
    bool read_input(Clock::duration timeout);
    bool read_available(int flags);
    void read_all_available();
    Outcome give_up(Outcome outcome);
    void keep_alive();
    void say_goodbye(Clock::duration patience);

    void start_idle_thread();
    void stop_idle_thread();
    void look_after_connection();
    void look_once();

    const std::string path_, host_;
    const int port_;
    const Clock::duration keepalive_;

    // Held by whoever uses what follows; by a caller also while it waits for the peer.
    std::mutex mutex_;
    std::unique_ptr<ClientSession> session_;
    Status unstarted_;  // of a call without a connection
    int fd_ = -1;
    // Of the process that connected: a fork has the descriptors, but not the thread.
    std::atomic<int> pid_{0};
    Clock::time_point last_input_, last_ping_;
    bool is_pinged_ = false;
    std::vector<std::uint8_t> input_;

    std::atomic<bool> is_closed_{false};
    std::atomic<bool> is_input_shut_{false};  // to end a wait
    // The socket that a caller waits for, or -1. Guarded by a mutex that is never held for long.
    std::mutex waiting_mutex_;
    int waiting_fd_ = -1;

    // No condition variable, whose destructor hangs in a fork.
    std::thread idle_thread_;
    int idle_event_ = -1;
    std::atomic<bool> is_idle_over_{false};
    std::atomic<bool> is_push_wanted_{false};
};

}  // namespace seed_rl
