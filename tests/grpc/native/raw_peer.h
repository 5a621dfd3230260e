// A client that writes its HTTP/2 frames by hand and knows nothing of the code that it checks: it
// can do all that is wrong. Its own part of the protocol it keeps: windows, SETTINGS, PING.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "check.h"
#include "frames.h"

namespace seed_rl::check {

// Where a server listens.
struct Address {
    int port = 0;      // on 127.0.0.1, or
    std::string path;  // of a unix socket
};

class RawPeer {
public:
    struct Stream {
        Bytes data;
        std::size_t num_read = 0;
        Headers headers;
        bool has_headers = false;
        bool is_over = false;  // the server sends no more
        int reset = -1;        // its error code
        std::int64_t window = 0;
    };

    static constexpr std::chrono::seconds kPatience{90};

    RawPeer(const Address& address, Random& random) : random_(random) {
        nghttp2_hd_inflate_new(&inflater_);
        fd_ = connect_to(address);
    }
    ~RawPeer() {
        close();
        nghttp2_hd_inflate_del(inflater_);
    }
    RawPeer(const RawPeer&) = delete;
    RawPeer& operator=(const RawPeer&) = delete;

    // Chops all that is sent at random bytes.
    bool chops = false;
    bool answers_pings = true;
    bool opens_windows = true;

    bool is_eof() const { return is_eof_; }
    bool has_goaway() const { return has_goaway_; }
    std::size_t num_pongs() const { return num_pongs_; }
    int fd() const { return fd_; }

    void start(std::uint32_t initial_window = 1 << 24) {
        Bytes out;
        append(out, kPreface);
        append_settings(out, {{4, initial_window}});
        append_frame(out, kWindowUpdate, 0, 1 << 30);
        send(out);
    }

    Stream& stream(std::uint32_t id) { return streams_.at(id); }

    // Sends the headers of a call.
    std::uint32_t open(const Headers& headers, bool ends = false) {
        const std::uint32_t id = next_id_;
        next_id_ += 2;
        streams_[id].window = initial_window_;
        Bytes block = header_block(headers);
        Bytes out;
        const std::uint8_t end = ends ? kEndStream : 0;
        if (block.size() > 1 && random_.one_in(4)) {
            const std::size_t first = random_.between(0, block.size());
            append_frame(out, kHeaders, end, id, block.data(), first);
            append_frame(out, kContinuation, kEndHeaders, id, block.data() + first,
                         block.size() - first);
        } else {
            append_frame(out, kHeaders, end | kEndHeaders, id, block);
        }
        send(out);
        return id;
    }

    // The same with headers that don't fit into a frame.
    std::uint32_t open_in_pieces(const Headers& headers) {
        const std::uint32_t id = next_id_;
        next_id_ += 2;
        streams_[id].window = initial_window_;
        const Bytes block = header_block(headers);
        Bytes out;
        for (std::size_t done = 0; done < block.size();) {
            const std::size_t size = std::min<std::size_t>(block.size() - done, 8000);
            append_frame(out, done == 0 ? kHeaders : kContinuation,
                         done + size == block.size() ? kEndHeaders : 0, id, block.data() + done,
                         size);
            done += size;
        }
        send(out);
        return id;
    }

    // Sends bytes as DATA frames of random sizes, as the windows allow. Pauses between them.
    void send_data(std::uint32_t id, const Bytes& bytes, bool ends = false,
                   std::chrono::microseconds pause = {}) {
        std::size_t done = 0;
        do {
            Stream& stream = streams_.at(id);
            wait("the server's window", [&] {
                return done == bytes.size() || stream.is_over ||
                       std::min(stream.window, connection_window_) > 0;
            });
            // What follows the end would be wrong.
            if (stream.is_over) return;
            std::size_t size = bytes.size() - done;
            if (size > 0) {
                size = std::min<std::size_t>(
                    size, std::min<std::int64_t>(std::min(stream.window, connection_window_), 16384));
                if ((chops || pause.count() > 0) && !random_.one_in(3)) {
                    size = random_.between(1, size);
                }
            }
            stream.window -= size;
            connection_window_ -= size;
            const bool is_last = done + size == bytes.size();
            const std::uint8_t end = ends && is_last ? kEndStream : 0;
            Bytes out;
            const std::int64_t padding = random_.between(0, 20);
            if (random_.one_in(8) && std::min(stream.window, connection_window_) > padding &&
                size + padding < 16384) {
                stream.window -= padding + 1;
                connection_window_ -= padding + 1;
                Bytes payload{static_cast<std::uint8_t>(padding)};
                payload.insert(payload.end(), bytes.data() + done, bytes.data() + done + size);
                payload.resize(payload.size() + padding);
                append_frame(out, kData, end | kPadded, id, payload);
            } else {
                append_frame(out, kData, end, id, bytes.data() + done, size);
            }
            if (random_.one_in(10)) append_frame(out, kPing, 0, 0, Bytes(8));
            send(out);
            done += size;
            if (pause.count() > 0) {
                const auto until = std::chrono::steady_clock::now() + pause;
                while (std::chrono::steady_clock::now() < until && !is_eof_) pump(1);
            }
        } while (done < bytes.size());
    }

    void end(std::uint32_t id) {
        Bytes out;
        append_frame(out, kData, kEndStream, id, {});
        send(out);
    }

    void reset(std::uint32_t id, std::uint32_t error) {
        Bytes out;
        append_frame(out, kRstStream, id, error);
        send(out);
    }

    // Sends bytes as they are. Reads meanwhile, so that both ends never wait for each other.
    void send(const Bytes& bytes) {
        Bytes all = std::exchange(acknowledgements_, {});
        append(all, bytes);
        std::size_t done = 0;
        const auto until = std::chrono::steady_clock::now() + kPatience;
        while (done < all.size()) {
            if (is_eof_) return;
            std::size_t size = all.size() - done;
            if (chops) size = std::min(size, random_.between(1, 200));
            const ssize_t sent = ::send(fd_, all.data() + done, size, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent > 0) {
                done += static_cast<std::size_t>(sent);
            } else if (errno == EAGAIN) {
                pump(100, true);
            } else if (errno != EINTR) {
                is_eof_ = true;
            }
            if (std::chrono::steady_clock::now() > until) throw Gone("the server reads nothing");
        }
    }

    // Sends as much as goes for a while, and reads nothing. False where some is left.
    bool send_blindly(const Bytes& bytes) {
        std::size_t done = 0;
        for (int num_tries = 0; num_tries < 200 && done < bytes.size();) {
            const ssize_t sent = ::send(fd_, bytes.data() + done, bytes.size() - done,
                                        MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent > 0) {
                done += static_cast<std::size_t>(sent);
            } else {
                ++num_tries;
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        }
        return done == bytes.size();
    }

    void wait_for_end(const char* what) {
        const auto until = std::chrono::steady_clock::now() + kPatience;
        while (!is_eof_) {
            if (std::chrono::steady_clock::now() > until) {
                throw Gone(std::string("waited in vain for ") + what);
            }
            pump(100);
        }
    }

    // Reads until something holds. Throws Gone.
    template <typename Condition>
    void wait(const char* what, Condition holds) {
        const auto until = std::chrono::steady_clock::now() + kPatience;
        while (!holds()) {
            if (is_eof_) throw Gone(std::string("the connection ended before ") + what);
            if (std::chrono::steady_clock::now() > until) {
                throw Gone(std::string("waited in vain for ") + what);
            }
            pump(100);
        }
    }

    // Reads what is there, or comes in time.
    void pump(int timeout_ms, bool or_writable = false) {
        pollfd item{fd_, static_cast<short>(or_writable ? POLLIN | POLLOUT : POLLIN), 0};
        if (::poll(&item, 1, timeout_ms) > 0 && (item.revents & ~POLLOUT) != 0) {
            std::uint8_t buffer[16384];
            const std::size_t size = chops ? random_.between(1, 100) : sizeof buffer;
            const ssize_t received = ::recv(fd_, buffer, size, MSG_DONTWAIT);
            if (received > 0) {
                in_.insert(in_.end(), buffer, buffer + received);
                read_frames();
            } else if (received == 0 || (errno != EAGAIN && errno != EINTR)) {
                is_eof_ = true;
            }
        }
        if (!or_writable && !acknowledgements_.empty() && !is_eof_) send({});
    }

    // The next whole message on a stream. False where it isn't there.
    bool next_message(std::uint32_t id, Bytes& message) {
        Stream& stream = streams_.at(id);
        const std::size_t left = stream.data.size() - stream.num_read;
        if (left < 5) return false;
        const std::uint8_t* start = stream.data.data() + stream.num_read;
        if (start[0] != 0) fail("the server sent a compressed message");
        const std::size_t size = std::size_t{start[1]} << 24 | start[2] << 16 | start[3] << 8 | start[4];
        if (left - 5 < size) return false;
        message.assign(start + 5, start + 5 + size);
        stream.num_read += 5 + size;
        if (stream.num_read == stream.data.size()) {
            stream.data.clear();
            stream.num_read = 0;
        }
        return true;
    }

    std::string header(std::uint32_t id, std::string_view name) const {
        std::string found;
        for (const auto& [key, value] : streams_.at(id).headers) {
            if (key == name) found = value;
        }
        return found;
    }

    void forget(std::uint32_t id) { streams_.erase(id); }

    // With a reset, the server's kernel throws away what it has not read.
    void close(bool resets = false) {
        if (fd_ < 0) return;
        if (resets) {
            const linger none{1, 0};
            setsockopt(fd_, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        }
        ::close(fd_);
        fd_ = -1;
        is_eof_ = true;
    }

private:
    static int connect_to(const Address& address) {
        const bool is_unix = !address.path.empty();
        const int fd = ::socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) fail("socket: %s", std::strerror(errno));
        int result;
        if (is_unix) {
            sockaddr_un name{};
            name.sun_family = AF_UNIX;
            address.path.copy(name.sun_path, sizeof name.sun_path - 1);
            result = ::connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name);
        } else {
            sockaddr_in name{};
            name.sin_family = AF_INET;
            name.sin_port = htons(static_cast<std::uint16_t>(address.port));
            name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            result = ::connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name);
            const int on = 1;
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        }
        if (result < 0) {
            ::close(fd);
            throw Gone("can't connect");
        }
        return fd;
    }

    void read_frames() {
        std::size_t start = 0;
        while (in_.size() - start >= kFrameHeaderBytes) {
            const std::uint8_t* frame = in_.data() + start;
            const std::size_t size = frame[0] << 16 | frame[1] << 8 | frame[2];
            if (in_.size() - start < kFrameHeaderBytes + size) break;
            read_frame(frame[3], frame[4], u32(frame + 5) & 0x7FFFFFFF, frame + kFrameHeaderBytes,
                       size);
            start += kFrameHeaderBytes + size;
        }
        in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(start));
    }

    static std::uint32_t u32(const std::uint8_t* data) {
        return std::uint32_t{data[0]} << 24 | data[1] << 16 | data[2] << 8 | data[3];
    }

    void read_frame(std::uint8_t type, std::uint8_t flags, std::uint32_t id,
                    const std::uint8_t* payload, std::size_t size) {
        const auto found = streams_.find(id);
        Stream* stream = found == streams_.end() ? nullptr : &found->second;
        switch (type) {
            case kData:
                if (stream != nullptr) {
                    if (stream->is_over) fail("DATA after the end of a stream");
                    stream->data.insert(stream->data.end(), payload, payload + size);
                    if ((flags & kEndStream) != 0) stream->is_over = true;
                }
                if (opens_windows && size > 0) {
                    append_frame(acknowledgements_, kWindowUpdate, 0,
                                 static_cast<std::uint32_t>(size));
                    append_frame(acknowledgements_, kWindowUpdate, id,
                                 static_cast<std::uint32_t>(size));
                }
                break;
            case kHeaders:
                if ((flags & kEndHeaders) == 0) fail("the server's headers are too large");
                inflate(payload, size, stream);
                if (stream != nullptr) {
                    stream->has_headers = true;
                    if ((flags & kEndStream) != 0) stream->is_over = true;
                }
                break;
            case kRstStream:
                if (stream != nullptr) {
                    stream->reset = static_cast<int>(u32(payload));
                    stream->is_over = true;
                }
                break;
            case kSettings:
                if ((flags & kAck) != 0) break;
                for (std::size_t i = 0; i + 6 <= size; i += 6) {
                    if ((payload[i] << 8 | payload[i + 1]) != 4) continue;
                    const std::int64_t window = u32(payload + i + 2);
                    for (auto& item : streams_) item.second.window += window - initial_window_;
                    initial_window_ = window;
                }
                append_frame(acknowledgements_, kSettings, kAck, 0, {});
                break;
            case kPing:
                if ((flags & kAck) != 0) {
                    ++num_pongs_;
                } else if (answers_pings) {
                    append_frame(acknowledgements_, kPing, kAck, 0, payload, size);
                }
                break;
            case kGoaway:
                has_goaway_ = true;
                break;
            case kWindowUpdate:
                if (id == 0) {
                    connection_window_ += u32(payload);
                } else if (stream != nullptr) {
                    stream->window += u32(payload);
                }
                break;
            default:
                break;
        }
    }

    void inflate(const std::uint8_t* block, std::size_t size, Stream* stream) {
        while (true) {
            nghttp2_nv nv;
            int flags = 0;
            const ssize_t done = nghttp2_hd_inflate_hd2(inflater_, &nv, &flags, block, size, 1);
            if (done < 0) fail("the server's headers can't be read");
            block += done;
            size -= static_cast<std::size_t>(done);
            if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0 && stream != nullptr) {
                stream->headers.emplace_back(std::string(nv.name, nv.name + nv.namelen),
                                             std::string(nv.value, nv.value + nv.valuelen));
            }
            if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) break;
        }
        nghttp2_hd_inflate_end_headers(inflater_);
    }

    Random& random_;
    int fd_ = -1;
    bool is_eof_ = false;
    bool has_goaway_ = false;
    std::size_t num_pongs_ = 0;
    nghttp2_hd_inflater* inflater_ = nullptr;
    Bytes in_;
    Bytes acknowledgements_;
    std::map<std::uint32_t, Stream> streams_;
    std::uint32_t next_id_ = 1;
    std::int64_t initial_window_ = 65535;
    std::int64_t connection_window_ = 65535;
};

}  // namespace seed_rl::check
