#include "client_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "blocked_signals.h"

namespace seed_rl {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kUnixBufferBytes = 4 << 20;
constexpr std::chrono::milliseconds kSlice(200);

class Socket {
public:
    explicit Socket(int fd) : fd_(fd) {}
    ~Socket() {
        if (fd_ >= 0) ::close(fd_);
    }
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;
    int get() const { return fd_; }
    int release() { return std::exchange(fd_, -1); }

private:
    int fd_;
};

struct Place {
    sockaddr_storage address;
    socklen_t size;
};

std::string text_of(int error) { return std::generic_category().message(error); }

std::string text_of(const Place& place) {
    char host[NI_MAXHOST];
    if (place.address.ss_family == AF_UNIX ||
        getnameinfo(reinterpret_cast<const sockaddr*>(&place.address), place.size, host,
                    sizeof host, nullptr, 0, NI_NUMERICHOST)) {
        return "";
    }
    return std::string(host) + ": ";
}

// What the name means. It may be asked of a server that doesn't answer, and that can't be
// interrupted: so a thread waits for it, and may be left behind.
struct Lookup {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
    int error = 0;
    std::vector<Place> places;
};

void look_up(const std::string& host, const std::string& port, Lookup& lookup) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> freed(error ? nullptr : found,
                                                                   freeaddrinfo);
    const std::lock_guard<std::mutex> lock(lookup.mutex);
    for (const addrinfo* info = freed.get(); info; info = info->ai_next) {
        if (info->ai_addrlen > sizeof(sockaddr_storage)) continue;
        Place place{};
        std::memcpy(&place.address, info->ai_addr, info->ai_addrlen);
        place.size = info->ai_addrlen;
        lookup.places.push_back(place);
    }
    lookup.error = error;
    lookup.is_done = true;
    lookup.changed.notify_all();
}

Connected resolve(const std::string& host, int port, Clock::time_point deadline,
                  const std::function<bool()>& gives_up, std::vector<Place>& places,
                  std::string& error) {
    const auto lookup = std::make_shared<Lookup>();
    {
        const BlockedSignals blocked;
        std::thread([lookup, host, port] {
            look_up(host, std::to_string(port), *lookup);
        }).detach();
    }

    std::unique_lock<std::mutex> lock(lookup->mutex);
    const auto is_done = [&] { return lookup->is_done; };
    while (!lookup->changed.wait_until(lock, std::min(deadline, Clock::now() + kSlice), is_done)) {
        if (gives_up()) return Connected::kGivenUp;
        if (Clock::now() >= deadline) return Connected::kDeadline;
    }
    if (lookup->error || lookup->places.empty()) {
        error = host + ": " + (lookup->error ? gai_strerror(lookup->error) : "no address");
        return Connected::kFailed;
    }
    places = lookup->places;
    return Connected::kDone;
}

// Waits in slices until the descriptor is writable or, without one, for one slice.
Connected wait_writable(int fd, Clock::time_point deadline, const std::function<bool()>& gives_up) {
    while (true) {
        if (gives_up()) return Connected::kGivenUp;
        const auto left = deadline - Clock::now();
        if (left <= Clock::duration::zero()) return Connected::kDeadline;
        const auto slice = std::min<Clock::duration>(left, kSlice);
        const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(slice).count();
        pollfd waiting{fd, POLLOUT, 0};
        if (poll(&waiting, 1, static_cast<int>(ms) + 1) > 0) return Connected::kDone;
    }
}

// A port of localhost that nobody listens on can be given to the very socket that asks for it.
bool is_connected_to_itself(int fd) {
    sockaddr_storage ours{}, theirs{};
    socklen_t our_size = sizeof ours, their_size = sizeof theirs;
    return getsockname(fd, reinterpret_cast<sockaddr*>(&ours), &our_size) == 0 &&
           getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &their_size) == 0 &&
           ours.ss_family != AF_UNIX && our_size == their_size &&
           std::memcmp(&ours, &theirs, our_size) == 0;
}

// Leaves `error` 0 where it returns kDone, and sets it where it returns kFailed.
Connected connect_place(const Place& place, Clock::time_point deadline,
                        const std::function<bool()>& gives_up, int& connected, int& error) {
    Socket fd(socket(place.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    error = 0;
    if (fd.get() < 0) {
        error = errno;
        return Connected::kFailed;
    }
    const auto* const address = reinterpret_cast<const sockaddr*>(&place.address);
    while (connect(fd.get(), address, place.size) != 0) {
        if (errno == EAGAIN) {  // a unix socket's backlog is full, and nothing tells when it isn't
            if (gives_up()) return Connected::kGivenUp;
            if (Clock::now() >= deadline) return Connected::kDeadline;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            continue;
        }
        if (errno != EINPROGRESS && errno != EINTR) {
            error = errno;
            return Connected::kFailed;
        }
        const Connected outcome = wait_writable(fd.get(), deadline, gives_up);
        if (outcome != Connected::kDone) return outcome;
        socklen_t size = sizeof error;
        if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
        if (error) return Connected::kFailed;
        break;
    }
    if (is_connected_to_itself(fd.get())) {
        error = ECONNREFUSED;
        return Connected::kFailed;
    }
    const int flags = fcntl(fd.get(), F_GETFL);
    if (flags < 0 || fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) {
        error = errno;
        return Connected::kFailed;
    }
    if (place.address.ss_family == AF_UNIX) {
        // Unlike TCP's, the buffer doesn't grow by itself, and messages of pictures don't fit. The
        // system may allow less.
        setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kUnixBufferBytes, sizeof kUnixBufferBytes);
    } else {
        const int on = 1;
        setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    connected = fd.release();
    return Connected::kDone;
}

}  // namespace

Connected connect_socket(const std::string& path, const std::string& host, int port,
                         Clock::time_point deadline, const std::function<bool()>& gives_up,
                         int& fd, std::string& error) {
    std::vector<Place> places;
    if (path.empty()) {
        const Connected outcome = resolve(host, port, deadline, gives_up, places, error);
        if (outcome != Connected::kDone) return outcome;
    } else {
        Place place{};
        auto& unix_address = reinterpret_cast<sockaddr_un&>(place.address);
        unix_address.sun_family = AF_UNIX;
        if (path.size() >= sizeof unix_address.sun_path) {
            error = text_of(ENAMETOOLONG);
            return Connected::kFailed;
        }
        std::memcpy(unix_address.sun_path, path.c_str(), path.size() + 1);
        place.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
        places.push_back(place);
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
        // One that doesn't answer leaves time for the others.
        const auto now = Clock::now();
        const auto share = now + (deadline - now) / static_cast<int>(places.size() - i);
        int number = 0;
        const Connected outcome = connect_place(places[i], share, gives_up, fd, number);
        if (outcome == Connected::kDone || outcome == Connected::kGivenUp) return outcome;
        if (outcome == Connected::kDeadline && Clock::now() >= deadline) return outcome;
        if (!error.empty()) error += ", ";
        error += text_of(places[i]) + text_of(number ? number : ETIMEDOUT);
    }
    return Connected::kFailed;
}

std::string authority(const std::string& path, const std::string& host, int port) {
    if (!path.empty()) return "localhost";
    const bool is_ipv6 = host.find(':') != std::string::npos;
    return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace seed_rl
