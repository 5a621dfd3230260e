#include "server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "blocked_signals.h"

namespace seed_rl {

namespace {

constexpr std::size_t kInputBytes = 256 << 10;
constexpr int kMaxEpollEvents = 256;
constexpr Seconds kLongestTick{0.5};
constexpr auto kClosingTick = std::chrono::milliseconds(10);
constexpr int kMaxReads = 8;  // of a connection in a row

[[noreturn]] void fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
}

Clock::duration ticks(Seconds keepalive) {
    return std::chrono::duration_cast<Clock::duration>(std::min(kLongestTick, keepalive / 4));
}

std::string peer_name(const sockaddr_storage& address) {
    char text[INET6_ADDRSTRLEN] = "";
    if (address.ss_family == AF_INET) {
        const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
        inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
        return std::string(text) + ":" + std::to_string(ntohs(v4.sin_port));
    }
    if (address.ss_family == AF_INET6) {
        const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
        if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
            inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, text, sizeof text);
            return std::string(text) + ":" + std::to_string(ntohs(v6.sin6_port));
        }
        inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
        return "[" + std::string(text) + "]:" + std::to_string(ntohs(v6.sin6_port));
    }
    return "a unix socket";
}

}  // namespace

Server::Server(Options options)
    : options_(std::move(options)),
      batcher_(options_.rows.sizes, options_.capacity, options_.batch_timeout,
               [this] {
                   has_overdue_ = true;
                   wake();
               }),
      tick_(ticks(options_.keepalive)),
      input_(kInputBytes) {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ < 0) fail("epoll_create1");
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_ < 0) fail("eventfd");
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = nullptr;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) < 0) fail("epoll_ctl");
    watch_listeners(true);
    const BlockedSignals blocked;
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "seed_rl epoll");
}

Server::~Server() {
    close(false, Seconds(0));
    ::close(wake_);
    ::close(epoll_);
}

void Server::reply(int batch, const std::vector<const std::uint8_t*>& columns) {
    thread_local std::vector<Call> calls;  // keeps its memory
    batcher_.replied(batch, calls);
    for (const Call& call : calls) {
        auto& stream = static_cast<Stream&>(*call.source);
        const ConnectionPtr connection = stream.connection.lock();
        if (!connection) continue;
        const std::lock_guard lock(connection->mutex);
        if (stream.is_closed) continue;
        connection->answer(stream, columns, options_.action_sizes, call.first, call.n);
        // The server's thread finds out that it is broken.
        if (!connection->flush()) ::shutdown(connection->fd(), SHUT_RDWR);
    }
    calls.clear();
}

bool Server::next_event(Seconds timeout, Event& event) {
    std::unique_lock lock(events_mutex_);
    if (!events_changed_.wait_for(lock, timeout, [this] { return !events_.empty(); })) return false;
    event = std::move(events_.front());
    events_.pop_front();
    return true;
}

void Server::respond(std::uint64_t call, std::string_view payload) {
    with_call(call, [&](Connection& connection, Stream& stream) {
        connection.respond(stream, payload);
    });
}

bool Server::accept(std::uint64_t call, const std::string& lease, std::size_t first_env_id,
                    std::size_t num_envs) {
    bool is_accepted = false;
    with_call(call, [&](Connection& connection, Stream& stream) {
        is_accepted = connection.accept(stream, lease, first_env_id, num_envs);
    });
    return is_accepted;
}

void Server::refuse(std::uint64_t call, int code, const std::string& details) {
    with_call(call, [&](Connection& connection, Stream& stream) {
        connection.end(stream, code, details, "refused");
    });
}

template <typename Action>
void Server::with_call(std::uint64_t call, Action action) {
    StreamPtr stream;
    {
        const std::lock_guard lock(calls_mutex_);
        const auto found = calls_.find(call);
        if (found == calls_.end()) return;
        stream = found->second;
    }
    const ConnectionPtr connection = stream->connection.lock();
    if (!connection) return;
    const std::lock_guard lock(connection->mutex);
    if (stream->is_closed) return;
    action(*connection, *stream);
    if (!connection->flush()) ::shutdown(connection->fd(), SHUT_RDWR);
}

std::vector<Server::Silence> Server::silences() {
    const auto now = Clock::now();
    std::vector<Silence> silences;
    const std::lock_guard lock(calls_mutex_);
    for (const auto& [call, stream] : calls_) {
        const auto since = batcher_.silent_since(*stream);
        if (since < now) silences.push_back({call, Seconds(now - since).count()});
    }
    return silences;
}

void Server::close(bool finished, Seconds grace) {
    const std::lock_guard lock(close_mutex_);
    if (close_was_called_) return;
    close_was_called_ = true;
    batcher_.close();
    is_finished_ = finished;
    close_by_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace);
    close_is_wanted_ = true;
    wake();
    thread_.join();
}

std::uint64_t Server::add_call(const StreamPtr& stream) {
    const std::lock_guard lock(calls_mutex_);
    calls_[++num_calls_] = stream;
    return num_calls_;
}

void Server::remove_call(std::uint64_t call) {
    const std::lock_guard lock(calls_mutex_);
    calls_.erase(call);
}

void Server::add_event(Event event) {
    const std::lock_guard lock(events_mutex_);
    events_.push_back(std::move(event));
    events_changed_.notify_one();
}

void Server::call_is_ready(Stream& stream, const std::string& peer) {
    const bool is_join = stream.method == Stream::Method::kJoin;
    add_event({is_join ? Event::Kind::kJoin : Event::Kind::kAct, stream.call,
               std::move(stream.request), {}, stream.lease, stream.token, peer});
}

void Server::message_is_bad(Stream& stream) {
    add_event({Event::Kind::kBad, stream.call, std::move(stream.bad_message), stream.started(), "",
               "", ""});
}

void Server::call_has_ended(Stream& stream, const char* reason) {
    add_event({Event::Kind::kEnd, stream.call, {}, {}, "", "", reason});
}

void Server::wants(Connection& connection, bool input, bool output) {
    epoll_event event{};
    if (input) event.events |= EPOLLIN;
    if (output) event.events |= EPOLLOUT;
    event.data.ptr = &connection;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.fd(), &event);
}

void Server::wake() {
    const std::uint64_t one = 1;
    // Only a full counter fails, and then the thread is being woken anyway.
    [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

// All that follows runs in the server's thread.

void Server::run() {
    epoll_event events[kMaxEpollEvents];
    now_ = Clock::now();
    auto next_tick = now_ + tick_;
    while (true) {
        int timeout_ms = -1;
        if (is_closing_ || is_paused_ || !connections_.empty()) {
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_tick - now_);
            timeout_ms = static_cast<int>(std::max<std::int64_t>(0, left.count()));
        }
        const int num_events = epoll_wait(epoll_, events, kMaxEpollEvents, timeout_ms);
        now_ = Clock::now();
        for (int i = 0; i < num_events; ++i) {
            void* const target = events[i].data.ptr;
            if (target == nullptr) {
                std::uint64_t count;
                [[maybe_unused]] const ssize_t size = ::read(wake_, &count, sizeof count);
            } else if (target == this) {
                accept_connections();
            } else if (const auto found = connections_.find(static_cast<Connection*>(target));
                       found != connections_.end()) {
                // Dropping it must not end it here.
                const ConnectionPtr connection = found->second;
                serve(connection, events[i].events);
            }
        }
        if (has_overdue_.exchange(false)) evict_overdue();
        if (close_is_wanted_ && !is_closing_) start_closing();
        if (now_ >= next_tick) {
            tick(now_);
            next_tick = now_ + (is_closing_ ? std::min<Clock::duration>(tick_, kClosingTick) : tick_);
        }
        if (is_closing_ && (connections_.empty() || now_ >= close_by_)) break;
    }
    for (const auto& item : std::exchange(connections_, {})) {
        const std::lock_guard lock(item.second->mutex);
        item.second->lose();
    }
}

void Server::accept_connections() {
    for (const int listener : options_.listeners) {
        while (true) {
            sockaddr_storage address{};
            socklen_t size = sizeof address;
            const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&address), &size,
                                   SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd < 0) {
                if (errno == EINTR || errno == ECONNABORTED) continue;
                if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                    // Who knocks stays in the queue, and would wake us again at once.
                    is_paused_ = true;
                    watch_listeners(false);
                    return;
                }
                break;
            }
            const int on = 1;
            if (address.ss_family != AF_UNIX) {
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            }
            auto connection =
                std::make_shared<Connection>(fd, peer_name(address), static_cast<Owner&>(*this),
                                             options_.rows, batcher_);
            epoll_event event{};
            event.events = EPOLLIN;
            event.data.ptr = connection.get();
            if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) < 0) continue;
            connections_[connection.get()] = connection;
            const std::lock_guard lock(connection->mutex);
            if (!connection->flush()) ::shutdown(fd, SHUT_RDWR);
        }
    }
}

void Server::watch_listeners(bool watch) {
    for (const int listener : options_.listeners) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.ptr = this;
        epoll_ctl(epoll_, watch ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener, &event);
    }
}

void Server::serve(const ConnectionPtr& connection, std::uint32_t events) {
    if ((events & EPOLLOUT) != 0) {
        const std::lock_guard lock(connection->mutex);
        if (!connection->flush()) events |= EPOLLHUP;
    }
    bool is_over = false;
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) is_over = !read(*connection);
    if (is_over) drop(connection);
}

// False at the connection's end.
bool Server::read(Connection& connection) {
    // One that sends without pause leaves the others their turn.
    for (int i = 0; i < kMaxReads; ++i) {
        const ssize_t size = recv(connection.fd(), input_.data(), input_.size(), MSG_DONTWAIT);
        if (size == 0) return false;
        if (size < 0) {
            if (errno == EINTR) continue;
            return errno == EAGAIN || errno == EWOULDBLOCK;
        }
        const std::lock_guard lock(connection.mutex);
        const bool is_well = connection.receive(input_.data(), static_cast<std::size_t>(size), now_);
        // Also where it isn't: the peer may be told why.
        if (!connection.flush() || !is_well) return false;
        if (connection.is_clogged() || static_cast<std::size_t>(size) < input_.size()) return true;
    }
    return true;
}

void Server::drop(const ConnectionPtr& connection) {
    connections_.erase(connection.get());
    const std::lock_guard lock(connection->mutex);
    epoll_ctl(epoll_, EPOLL_CTL_DEL, connection->fd(), nullptr);
    connection->lose();
}

void Server::evict_overdue() {
    for (const auto& source : batcher_.overdue()) {
        auto& stream = static_cast<Stream&>(*source);
        if (const ConnectionPtr connection = stream.connection.lock()) {
            const std::lock_guard lock(connection->mutex);
            connection->evict(stream);
        }
    }
}

void Server::tick(Clock::time_point now) {
    const auto keepalive = std::chrono::duration_cast<Clock::duration>(options_.keepalive);
    const auto silent_since =
        now - std::chrono::duration_cast<Clock::duration>(options_.waited_for);
    std::vector<ConnectionPtr> over;
    for (const auto& item : connections_) {
        const ConnectionPtr& connection = item.second;
        const std::lock_guard lock(connection->mutex);
        if (!connection->keep_alive(now, keepalive)) {
            over.push_back(connection);
            continue;
        }
        connection->look_after(now, silent_since);
        if (!connection->flush()) over.push_back(connection);
        if (is_closing_ && connection->is_done()) connection->finish_writing();
    }
    for (const ConnectionPtr& connection : over) drop(connection);
    if (is_paused_ && !is_closing_) {
        is_paused_ = false;
        watch_listeners(true);
    }
}

void Server::start_closing() {
    is_closing_ = true;
    if (!is_paused_) watch_listeners(false);
    for (const int listener : options_.listeners) ::close(listener);
    for (const auto& item : connections_) {
        const ConnectionPtr& connection = item.second;
        const std::lock_guard lock(connection->mutex);
        connection->shut_down(is_finished_);
        if (!connection->flush()) ::shutdown(connection->fd(), SHUT_RDWR);
        if (connection->is_done()) connection->finish_writing();
    }
}

}  // namespace seed_rl
