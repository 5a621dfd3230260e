#include "client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <limits>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "blocked_signals.h"
#include "client_socket.h"

namespace seed_rl {
namespace {

using Clock = Client::Clock;
using std::chrono::duration_cast;
using std::chrono::milliseconds;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "columns are sent as they are in memory");

constexpr milliseconds kSlice(200);  // of waiting, after which signals are looked at
constexpr milliseconds kMaxIdlePeriod(1000);
constexpr milliseconds kMinIdlePeriod(10);
constexpr milliseconds kPushSlice(50);
constexpr milliseconds kGoodbyePatience(200);
constexpr std::size_t kInputBytes = 64 << 10;
constexpr int kMaxReads = 64;
constexpr std::size_t kMaxUnaryBytes = 64 << 20;
constexpr std::size_t kMaxPieces = 16;

Clock::duration duration_of(double secs) {
    constexpr double kForever = 1e9;
    return duration_cast<Clock::duration>(
        std::chrono::duration<double>(secs < kForever ? std::max(secs, 0.0) : kForever));
}

// The value of grpc-timeout, which has at most eight digits.
std::string timeout_text(double secs) {
    constexpr double kMaxMs = 99999999;
    const double ms = std::max(secs * 1000, 1.0);
    return ms < kMaxMs ? std::to_string(static_cast<long>(ms)) + "m" : "";
}

std::string text_of(int error) { return std::generic_category().message(error); }

timespec timespec_of(Clock::duration duration) {
    const auto ns = duration_cast<std::chrono::nanoseconds>(duration).count();
    return {static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
}

}  // namespace

Client::Client(std::string path, std::string host, int port, double keepalive_secs)
    : path_(std::move(path)),
      host_(std::move(host)),
      port_(port),
      keepalive_(duration_of(keepalive_secs)),
      input_(kInputBytes) {}

Client::~Client() { close(Clock::duration::zero()); }

void Client::close() { close(kGoodbyePatience); }

Client::Outcome Client::unary(const std::string& method, const Metadata& metadata,
                              const std::string& message, double timeout_secs,
                              Interrupted interrupted, std::vector<std::uint8_t>& answer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto deadline = Clock::now() + duration_of(timeout_secs);
    Outcome outcome = start(method, metadata, timeout_secs, deadline, interrupted);
    if (outcome != Outcome::kDone) return outcome;
    if (std::uint8_t* const out = begin_message(kPrefixBytes + message.size())) {
        put_prefix(out, static_cast<std::uint32_t>(message.size()));
        std::memcpy(out + kPrefixBytes, message.data(), message.size());
        session_->end_message(kMaxUnaryBytes, true);
    }
    outcome = give_up(wait([] { return false; }, deadline, interrupted));
    if (outcome != Outcome::kEnded || session_->status().code != kOk) return outcome;
    if (!session_->has_answer()) {
        return end_unstarted(kInternal, "the learner answered without a message");
    }
    session_->take_answer(answer);
    return Outcome::kDone;
}

Client::Outcome Client::open(const std::string& method, const Metadata& metadata,
                             double timeout_secs, Interrupted interrupted, Metadata& headers) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto deadline = Clock::now() + duration_of(timeout_secs);
    const double no_timeout = std::numeric_limits<double>::infinity();  // of the whole stream
    Outcome outcome = start(method, metadata, no_timeout, deadline, interrupted);
    if (outcome != Outcome::kDone) return outcome;
    outcome = give_up(wait([this] { return session_->has_headers() && !session_->has_ended(); },
                           deadline, interrupted));
    if (outcome == Outcome::kDone) headers = session_->headers();
    return outcome;
}

void Client::send(const std::vector<Column>& columns, std::size_t max_answer_bytes, bool is_push) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::size_t bytes = 0;
    for (const Column& column : columns) bytes += column.bytes;
    if (bytes > std::numeric_limits<std::uint32_t>::max() - kMaxHeaderBytes) {
        throw std::length_error("a message has at most 4 GiB");
    }
    std::uint8_t header[kMaxHeaderBytes];
    const std::size_t header_bytes = put_header(header, bytes);
    std::uint8_t* out = begin_message(header_bytes + bytes);
    if (!out) return;
    std::memcpy(out, header, header_bytes);
    out += header_bytes;
    for (const Column& column : columns) {
        if (column.bytes) std::memcpy(out, column.data, column.bytes);
        out += column.bytes;
    }
    end_message(max_answer_bytes, is_push);
}

void Client::send_message(const void* message, std::size_t bytes, std::size_t max_answer_bytes,
                          bool is_push) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (bytes > std::numeric_limits<std::uint32_t>::max()) {
        throw std::length_error("a message has at most 4 GiB");
    }
    std::uint8_t* const out = begin_message(kPrefixBytes + bytes);
    if (!out) return;
    put_prefix(out, static_cast<std::uint32_t>(bytes));
    if (bytes) std::memcpy(out + kPrefixBytes, message, bytes);
    end_message(max_answer_bytes, is_push);
}

Client::Outcome Client::receive(double timeout_secs, Interrupted interrupted,
                                std::vector<std::uint8_t>& answer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!session_ || !session_->has_call()) return Outcome::kEnded;
    const Outcome outcome = wait([this] { return session_->has_answer(); },
                                 Clock::now() + duration_of(timeout_secs), interrupted);
    if (outcome == Outcome::kDone) session_->take_answer(answer);
    return give_up(outcome);
}

Status Client::status() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return session_ && session_->has_call() && unstarted_.code == kOk ? session_->status()
                                                                      : unstarted_;
}

void Client::close(Clock::duration patience) {
    is_closed_ = true;
    if (is_forked()) {
        // The connection is the other process's; its thread, and whoever holds a mutex, is not here.
        if (idle_thread_.joinable()) idle_thread_.detach();
        ::close(fd_);
        ::close(idle_event_);
        fd_ = idle_event_ = -1;
        pid_ = 0;
        return;
    }
    {
        const std::lock_guard<std::mutex> lock(waiting_mutex_);
        if (waiting_fd_ >= 0) {
            is_input_shut_ = true;
            shutdown(waiting_fd_, SHUT_RD);
        }
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    say_goodbye(patience);
    disconnect();
    end_unstarted(kCancelled, "the client was closed");
}

bool Client::is_forked() const {
    const int pid = pid_;
    return pid && pid != getpid();
}

Client::Outcome Client::connect(Clock::time_point deadline, Interrupted interrupted) {
    int fd = -1;
    std::string error;
    bool is_interrupted = false;
    const auto gives_up = [&] {
        is_interrupted = is_interrupted || interrupted();
        return is_interrupted || is_closed_;
    };
    switch (connect_socket(path_, host_, port_, deadline, gives_up, fd, error)) {
        case Connected::kDone: break;
        case Connected::kDeadline: return Outcome::kDeadline;
        case Connected::kGivenUp:
            return is_interrupted ? Outcome::kInterrupted
                                  : end_unstarted(kCancelled, "the client was closed");
        case Connected::kFailed: return end_unstarted(kUnavailable, error);
    }
    fd_ = fd;
    pid_ = getpid();
    timeval slice{};
    slice.tv_usec = std::chrono::microseconds(kSlice).count();
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof slice);
    last_input_ = Clock::now();
    is_pinged_ = false;
    session_ = std::make_unique<ClientSession>(authority(path_, host_, port_));
    start_idle_thread();
    return Outcome::kDone;
}

void Client::disconnect() {
    stop_idle_thread();
    session_.reset();
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
    pid_ = 0;
}

// Starts a call, on the connection that is there if it is still good.
Client::Outcome Client::start(const std::string& method, const Metadata& metadata,
                              double timeout_secs, Clock::time_point deadline,
                              Interrupted interrupted) {
    if (is_closed_) return end_unstarted(kCancelled, "the client was closed");
    for (const auto& [name, value] : metadata) {
        for (const char character : name + value) {
            if (character < 0x20 || character > 0x7E) {
                return end_unstarted(kUnavailable, name + " is to be of printable ASCII characters");
            }
        }
    }
    if (is_forked()) throw std::logic_error("a client can't be used across a fork");
    if (session_) read_all_available();  // it may have been closed in the meantime
    if (!session_ || !session_->is_usable()) {
        disconnect();
        const Outcome outcome = connect(deadline, interrupted);
        if (outcome != Outcome::kDone) return outcome;
    }
    unstarted_ = Status();
    session_->start_call(method, metadata, timeout_text(timeout_secs));
    return Outcome::kDone;
}

Client::Outcome Client::end_unstarted(int code, std::string details) {
    unstarted_ = {code, std::move(details), {}};
    return Outcome::kEnded;
}

// kDone as soon as `is_done` holds; kEnded where the call ends before.
template <typename Done>
Client::Outcome Client::wait(Done is_done, Clock::time_point deadline, Interrupted interrupted) {
    class Waiting {
    public:
        Waiting(Client& client) : client_(client) { set(client.fd_); }
        ~Waiting() { set(-1); }

    private:
        void set(int fd) {
            const std::lock_guard<std::mutex> lock(client_.waiting_mutex_);
            client_.waiting_fd_ = fd;
        }
        Client& client_;
    };
    const Waiting waiting(*this);  // close() wakes us from here on

    auto next_look = Clock::now() + kSlice;
    while (true) {
        if (is_done()) return Outcome::kDone;
        write_output();
        if (session_->has_ended()) return Outcome::kEnded;
        if (is_closed_) {
            session_->end_call(kCancelled, "the client was closed");
            return Outcome::kEnded;
        }
        const auto now = Clock::now();
        if (now >= deadline) return Outcome::kDeadline;
        const bool is_quiet = !read_input(std::min<Clock::duration>(deadline - now, kSlice));
        if (!is_quiet && now < next_look) continue;
        next_look = now + kSlice;
        keep_alive();
        if (interrupted()) return Outcome::kInterrupted;
    }
}

// Null where the call has ended.
std::uint8_t* Client::begin_message(std::size_t bytes) {
    if (!session_) return nullptr;
    std::uint8_t* const out = session_->begin_message(bytes);
    if (!out) session_->end_call(kInternal, "the learner answered before it had read all");
    return out;
}

void Client::end_message(std::size_t max_answer_bytes, bool is_push) {
    session_->end_message(max_answer_bytes, false);
    write_output();
    if (is_push && session_->is_sending()) {
        is_push_wanted_ = true;
        eventfd_write(idle_event_, 1);
    }
}

// As much as goes without waiting.
void Client::write_output() {
    while (session_->produce()) {
        iovec pieces[kMaxPieces];
        msghdr message{};
        message.msg_iov = pieces;
        message.msg_iovlen = session_->output(pieces, kMaxPieces);
        const ssize_t size = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (size >= 0) {
            session_->written(static_cast<std::size_t>(size));
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR) {
            // The peer may have said why before it went.
            session_->discard_output();
            return;
        }
    }
}

// Waits for input, and meanwhile for a way to write what is pending. Returns whether there was any.
bool Client::read_input(Clock::duration timeout) {
    const bool has_output = session_->has_output();
    // One call that both waits and reads, as long as it may wait for that long.
    if (!has_output && timeout >= kSlice) return read_available(0);
    pollfd waiting{fd_, static_cast<short>(has_output ? POLLIN | POLLOUT : POLLIN), 0};
    const timespec left = timespec_of(timeout);
    if (ppoll(&waiting, 1, &left, nullptr) <= 0) return false;
    if (waiting.revents & ~POLLOUT) return read_available(MSG_DONTWAIT);
    return true;
}

bool Client::read_available(int flags) {
    const ssize_t size = recv(fd_, input_.data(), input_.size(), flags);
    if (size > 0) {
        last_input_ = Clock::now();
        is_pinged_ = false;
        session_->feed(input_.data(), static_cast<std::size_t>(size));
        return true;
    }
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    if (is_input_shut_) return true;
    session_->fail(kUnavailable, size ? text_of(errno) : "the learner closed the connection");
    return true;
}

void Client::read_all_available() {
    for (int i = 0; i < kMaxReads && !session_->is_broken(); ++i) {
        if (!read_available(MSG_DONTWAIT)) return;
    }
}

// A call whose wait has ended without it is over.
Client::Outcome Client::give_up(Outcome outcome) {
    if (outcome == Outcome::kDeadline || outcome == Outcome::kInterrupted) {
        session_->end_call(kCancelled, "the client gave up");
        write_output();
    }
    return outcome;
}

void Client::keep_alive() {
    if (session_->is_broken()) return;
    const auto now = Clock::now();
    if (is_pinged_) {
        // Where we were stopped ourselves, the answer may be there.
        if (now - last_ping_ >= keepalive_ && !read_available(MSG_DONTWAIT)) {
            session_->fail(kUnavailable, "the learner doesn't answer pings");
        }
    } else if (now - last_input_ >= keepalive_) {
        session_->ping();
        is_pinged_ = true;
        last_ping_ = now;
        write_output();
    }
}

// A stream that nothing is awaited of ends in peace; the learner is given the time to agree, since
// to some servers a connection that breaks at once is one that was lost.
void Client::say_goodbye(Clock::duration patience) {
    if (!session_ || session_->is_broken()) return;
    if (session_->has_call() && !session_->has_ended()) {
        if (session_->has_headers() && !session_->is_awaiting() && !is_input_shut_) {
            session_->half_close();
            const auto until = Clock::now() + patience;
            while (!session_->has_ended() && !session_->is_broken()) {
                write_output();
                const auto left = until - Clock::now();
                if (left <= Clock::duration::zero()) break;
                read_input(left);
            }
        }
        session_->end_call(kCancelled, "the client was closed");
    }
    session_->say_goodbye();
    write_output();
}

void Client::start_idle_thread() {
    idle_event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (idle_event_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
    is_idle_over_ = false;
    const BlockedSignals blocked;
    idle_thread_ = std::thread([this] { look_after_connection(); });
}

void Client::stop_idle_thread() {
    if (idle_thread_.joinable()) {
        is_idle_over_ = true;
        eventfd_write(idle_event_, 1);
        idle_thread_.join();
    }
    if (idle_event_ >= 0) ::close(idle_event_);
    idle_event_ = -1;
}

void Client::look_after_connection() {
    const auto period = std::clamp<Clock::duration>(keepalive_ / 4, kMinIdlePeriod, kMaxIdlePeriod);
    pollfd event{idle_event_, POLLIN, 0};
    while (!is_idle_over_) {
        const timespec timeout = timespec_of(period);
        if (ppoll(&event, 1, &timeout, nullptr) > 0) {
            eventfd_t count;
            eventfd_read(idle_event_, &count);
        }
        look_once();
    }
}

void Client::look_once() {
    const bool is_push = is_push_wanted_.exchange(false);
    while (!is_idle_over_) {
        pollfd connection{};
        {
            const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
            if (!lock) return;  // the caller is at it
            read_all_available();
            keep_alive();
            write_output();
            if (!is_push || session_->is_broken() || !session_->is_sending()) return;
            connection.fd = fd_;
            connection.events = session_->has_output() ? POLLIN | POLLOUT : POLLIN;
        }
        const timespec timeout = timespec_of(kPushSlice);
        ppoll(&connection, 1, &timeout, nullptr);
        // Where nothing can be written any more, there is nothing to push.
        if (connection.revents & (POLLERR | POLLHUP)) return;
    }
}

}  // namespace seed_rl
