#include "connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <stdexcept>
#include <utility>

namespace seed_rl {

namespace {

constexpr std::int32_t kStreamWindow = 4 << 20;
constexpr std::int32_t kConnectionWindow = 16 << 20;
constexpr std::uint32_t kMaxFrameBytes = 1 << 20;
constexpr std::uint32_t kMaxStreams = 10'000;
constexpr std::size_t kMaxHeaderListBytes = 16 << 10;
constexpr std::size_t kHeaderOverhead = 32;  // that HTTP/2 counts for each header
constexpr std::size_t kBytesKept = 64 << 10;  // of an output buffer that has grown

constexpr char kContentType[] = "application/grpc";

// "20S", "500m", ...: at most eight digits and a unit. False where it is none.
bool parse_timeout(std::string_view text, Clock::duration& timeout) {
    if (text.size() < 2 || text.size() > 9) return false;
    std::uint64_t value = 0;
    const char* end = text.data() + text.size() - 1;
    const auto result = std::from_chars(text.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end) return false;
    double unit;
    switch (*end) {
        case 'H': unit = 3600; break;
        case 'M': unit = 60; break;
        case 'S': unit = 1; break;
        case 'm': unit = 1e-3; break;
        case 'u': unit = 1e-6; break;
        case 'n': unit = 1e-9; break;
        default: return false;
    }
    // Nobody waits for a year, and no sum overflows.
    const double secs = std::min(static_cast<double>(value) * unit, 366.0 * 24 * 3600);
    timeout = std::chrono::duration_cast<Clock::duration>(Seconds(secs));
    return true;
}

Connection& self(void* user_data) { return *static_cast<Connection*>(user_data); }

}  // namespace

struct Connection::Callbacks {
    static Stream* find(nghttp2_session* session, std::int32_t id) {
        return static_cast<Stream*>(nghttp2_session_get_stream_user_data(session, id));
    }

    static int begin_headers(nghttp2_session*, const nghttp2_frame* frame, void* user_data) {
        if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
            self(user_data).begin(frame->hd.stream_id);
        }
        return 0;
    }

    static int header(nghttp2_session* session, const nghttp2_frame* frame,
                      const std::uint8_t* name_data, std::size_t name_size,
                      const std::uint8_t* value_data, std::size_t value_size, std::uint8_t, void*) {
        Stream* stream = find(session, frame->hd.stream_id);
        if (stream == nullptr || stream->stage != Stream::Stage::kHeaders) return 0;
        stream->header_bytes += name_size + value_size + kHeaderOverhead;
        if (stream->header_bytes > kMaxHeaderListBytes) return 0;
        const auto name = view(name_data, name_size);
        const auto value = view(value_data, value_size);
        if (name == ":path") {
            stream->method = value == "/seed_rl.Seed/Join"  ? Stream::Method::kJoin
                             : value == "/seed_rl.Seed/Act" ? Stream::Method::kAct
                                                            : Stream::Method::kUnknown;
        } else if (name == ":method") {
            stream->http_method = value;
        } else if (name == "content-type") {
            stream->content_type = value;
        } else if (name == "seed-rl-token") {
            stream->token = value;
        } else if (name == "seed-rl-lease") {
            stream->lease = value;
        } else if (name == "grpc-encoding") {
            stream->encoding = value;
        } else if (name == "grpc-timeout") {
            Clock::duration timeout{};
            stream->has_deadline = parse_timeout(value, timeout);
            stream->has_bad_timeout = !stream->has_deadline;
            stream->deadline = Clock::now() + timeout;
        }
        return 0;
    }

    static int frame_received(nghttp2_session* session, const nghttp2_frame* frame,
                              void* user_data) {
        if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
        Stream* stream = find(session, frame->hd.stream_id);
        if (stream == nullptr) return 0;
        if (stream->stage == Stream::Stage::kHeaders) self(user_data).end_of_headers(*stream);
        if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) self(user_data).half_close(*stream);
        return 0;
    }

    static int data_received(nghttp2_session* session, std::uint8_t, std::int32_t id,
                             const std::uint8_t* data, std::size_t size, void* user_data) {
        // Of its window, a stream that doesn't go on takes nothing from the others.
        nghttp2_session_consume_connection(session, size);
        if (Stream* stream = find(session, id)) {
            self(user_data).react(*stream, stream->receive(data, size));
        }
        return 0;
    }

    static int frame_sent(nghttp2_session* session, const nghttp2_frame* frame, void*) {
        if ((frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) ||
            (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) {
            return 0;
        }
        // The status is out: whatever the actor still sends is in vain.
        const Stream* stream = find(session, frame->hd.stream_id);
        if (stream != nullptr && !stream->is_half_closed) {
            nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                                      NGHTTP2_NO_ERROR);
        }
        return 0;
    }

    static int stream_closed(nghttp2_session* session, std::int32_t id, std::uint32_t error_code,
                             void* user_data) {
        if (Stream* stream = find(session, id)) self(user_data).close_stream(*stream, error_code);
        return 0;
    }

    static ssize_t send(nghttp2_session*, const std::uint8_t* data, std::size_t size, int,
                        void* user_data) {
        Connection& connection = self(user_data);
        if (connection.num_pending_bytes() > kMaxPendingBytes) {
            if (!connection.write()) return NGHTTP2_ERR_CALLBACK_FAILURE;
            if (connection.num_pending_bytes() > kMaxPendingBytes) return NGHTTP2_ERR_WOULDBLOCK;
        }
        connection.output_.insert(connection.output_.end(), data, data + size);
        return static_cast<ssize_t>(size);
    }

    static ssize_t frame_length(nghttp2_session*, std::uint8_t, std::int32_t,
                                std::int32_t session_window, std::int32_t stream_window,
                                std::uint32_t max_frame_bytes, void*) {
        return std::min({static_cast<ssize_t>(session_window), static_cast<ssize_t>(stream_window),
                         static_cast<ssize_t>(max_frame_bytes)});
    }

    static ssize_t read_answer(nghttp2_session* session, std::int32_t id, std::uint8_t* buffer,
                               std::size_t size, std::uint32_t* flags, nghttp2_data_source* source,
                               void* user_data) {
        Stream& stream = *static_cast<Stream*>(source->ptr);
        const std::size_t take = std::min(size, stream.outgoing.size() - stream.num_sent);
        std::copy_n(stream.outgoing.data() + stream.num_sent, take, buffer);
        stream.num_sent += take;
        if (!stream.is_drained()) return static_cast<ssize_t>(take);
        if (stream.stage == Stream::Stage::kEnding) {
            *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
            submit_trailers(session, stream);
            return static_cast<ssize_t>(take);
        }
        if (take == 0) return NGHTTP2_ERR_DEFERRED;
        stream.is_busy = false;
        // Not from within nghttp2's own loop.
        if (stream.has_backlog() || stream.is_half_closed) self(user_data).drained_.push_back(id);
        return static_cast<ssize_t>(take);
    }

    static void submit_trailers(nghttp2_session* session, const Stream& stream) {
        const std::string status = std::to_string(stream.status_code);
        const std::string message = percent_encode(stream.status_message);
        nghttp2_nv headers[3];
        std::size_t count = 0;
        headers[count++] = seed_rl::header("grpc-status", status);
        if (!message.empty()) headers[count++] = seed_rl::header("grpc-message", message);
        if (stream.is_finished) headers[count++] = seed_rl::header("seed-rl-finished", "1");
        nghttp2_submit_trailer(session, stream.id, headers, count);
    }

    static const nghttp2_session_callbacks* get() {
        static const nghttp2_session_callbacks* const callbacks = [] {
            nghttp2_session_callbacks* made = nullptr;
            if (nghttp2_session_callbacks_new(&made) != 0) throw std::bad_alloc();
            nghttp2_session_callbacks_set_on_begin_headers_callback(made, begin_headers);
            nghttp2_session_callbacks_set_on_header_callback(made, header);
            nghttp2_session_callbacks_set_on_frame_recv_callback(made, frame_received);
            nghttp2_session_callbacks_set_on_data_chunk_recv_callback(made, data_received);
            nghttp2_session_callbacks_set_on_frame_send_callback(made, frame_sent);
            nghttp2_session_callbacks_set_on_stream_close_callback(made, stream_closed);
            nghttp2_session_callbacks_set_send_callback(made, send);
            nghttp2_session_callbacks_set_data_source_read_length_callback(made, frame_length);
            return made;
        }();
        return callbacks;
    }

    static const nghttp2_option* options() {
        static const nghttp2_option* const options = [] {
            nghttp2_option* made = nullptr;
            if (nghttp2_option_new(&made) != 0) throw std::bad_alloc();
            // Windows open as rows are taken, so that nobody can send more than is wanted.
            nghttp2_option_set_no_auto_window_update(made, 1);
            return made;
        }();
        return options;
    }
};

Connection::Connection(int fd, std::string peer, Owner& owner, const RowFormat& format,
                       Batcher& batcher)
    : fd_(fd),
      peer_(std::move(peer)),
      owner_(owner),
      format_(format),
      batcher_(batcher),
      last_read_(Clock::now()) {
    if (nghttp2_session_server_new2(&session_, Callbacks::get(), this, Callbacks::options()) != 0) {
        if (fd_ >= 0) ::close(fd_);
        throw std::bad_alloc();
    }
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, kMaxStreams},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindow},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, kMaxFrameBytes},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kMaxHeaderListBytes},
    };
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings));
    nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kConnectionWindow);
}

Connection::~Connection() {
    nghttp2_session_del(session_);
    if (fd_ >= 0) ::close(fd_);
}

bool Connection::receive(const std::uint8_t* data, std::size_t size, Clock::time_point now) {
    last_read_ = now;
    return nghttp2_session_mem_recv(session_, data, size) >= 0;
}

bool Connection::flush() {
    do {
        for (std::size_t i = 0; i < drained_.size(); ++i) {
            const auto found = streams_.find(drained_[i]);
            if (found == streams_.end()) continue;
            const std::shared_ptr<Stream> stream = found->second;
            if (stream->stage == Stream::Stage::kOpen && stream->is_drained()) go_on(*stream);
        }
        drained_.clear();
        if (nghttp2_session_want_write(session_) != 0 && nghttp2_session_send(session_) != 0) {
            return false;
        }
        if (!write()) return false;
    } while (!drained_.empty());
    // Of a peer that breaks the rules nghttp2 wants no more, once it has told it so.
    return is_shut_down_ || num_pending_bytes() > 0 || nghttp2_session_want_read(session_) != 0 ||
           nghttp2_session_want_write(session_) != 0;
}

bool Connection::write() {
    while (fd_ >= 0 && num_pending_bytes() > 0) {
        const ssize_t sent = ::send(fd_, output_.data() + output_start_, num_pending_bytes(),
                                    MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            output_start_ += static_cast<std::size_t>(sent);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            // Of a peer that never catches up, what was sent must not stay.
            if (output_start_ > num_pending_bytes()) {
                output_.erase(output_.begin(),
                              output_.begin() + static_cast<std::ptrdiff_t>(output_start_));
                output_start_ = 0;
            }
            want(true);
            return true;
        } else if (errno != EINTR) {
            return false;
        }
    }
    output_.clear();
    output_start_ = 0;
    if (output_.capacity() > kBytesKept) output_.shrink_to_fit();
    want(false);
    return true;
}

void Connection::want(bool output) {
    const bool input = !is_clogged();
    if (input == is_waiting_to_read_ && output == is_waiting_to_write_) return;
    is_waiting_to_read_ = input;
    is_waiting_to_write_ = output;
    owner_.wants(*this, input, output);
}

void Connection::begin(std::int32_t id) {
    auto stream = std::make_shared<Stream>(weak_from_this(), id, format_, batcher_);
    stream->call = owner_.add_call(stream);
    nghttp2_session_set_stream_user_data(session_, id, stream.get());
    streams_[id] = std::move(stream);
}

void Connection::end_of_headers(Stream& stream) {
    stream.stage = Stream::Stage::kRequest;
    if (stream.header_bytes > kMaxHeaderListBytes) {
        end(stream, kResourceExhausted, "received metadata size exceeds hard limit (value length " +
                std::to_string(stream.header_bytes) + " vs. " +
                std::to_string(kMaxHeaderListBytes) + ")",
            "refused");
    } else if (stream.http_method != "POST") {
        send_http_status(stream, "405");
    } else if (stream.content_type.compare(0, sizeof kContentType - 1, kContentType) != 0) {
        send_http_status(stream, "415");
    } else if (stream.encoding == "gzip" || stream.encoding == "deflate") {
        end(stream, kUnimplemented,
            "Compression algorithm '" + stream.encoding + "' is disabled.", "refused");
    } else if (!stream.encoding.empty() && stream.encoding != "identity") {
        end(stream, kInternal, "Error parsing 'grpc-encoding' metadata", "refused");
    } else if (stream.has_bad_timeout) {
        end(stream, kInternal, "Error parsing 'grpc-timeout' metadata", "refused");
    } else if (stream.method == Stream::Method::kUnknown) {
        end(stream, kUnimplemented, "Method not found!", "refused");
    } else if (is_shut_down_) {
        end(stream, kUnavailable, "the learner is shutting down", "dismissed");
    } else if (stream.method == Stream::Method::kAct) {
        stream.stage = Stream::Stage::kDecision;
        owner_.call_is_ready(stream, peer_);
    }
}

void Connection::half_close(Stream& stream) {
    if (stream.is_half_closed) return;
    stream.is_half_closed = true;
    if (stream.stage == Stream::Stage::kRequest) {
        if (stream.has_request) {
            stream.stage = Stream::Stage::kDecision;
            owner_.call_is_ready(stream, peer_);
        } else {
            end(stream, kInternal, "the request is missing", "refused");
        }
    } else if (stream.stage == Stream::Stage::kOpen) {
        go_on(stream);
    }
}

void Connection::react(Stream& stream, std::size_t num_consumed) {
    if (num_consumed > 0) nghttp2_session_consume_stream(session_, stream.id, num_consumed);
    if (stream.stage == Stream::Stage::kEnding) return;
    if (stream.failure_code != kOk) {
        end(stream, stream.failure_code, stream.failure, "refused");
    } else if (stream.is_bad && stream.stage == Stream::Stage::kOpen) {
        stream.stage = Stream::Stage::kDecision;
        owner_.message_is_bad(stream);
    }
}

void Connection::go_on(Stream& stream) {
    react(stream, stream.resume());
    if (stream.stage != Stream::Stage::kOpen || !stream.is_half_closed || stream.is_busy ||
        stream.has_backlog()) {
        return;
    }
    // A message that has come in part is as if it hadn't.
    end(stream, kOk, "", "left");
}

void Connection::respond(Stream& stream, std::string_view payload) {
    if (stream.stage != Stream::Stage::kDecision || stream.method != Stream::Method::kJoin) return;
    stream.answer(payload);
    stream.stage = Stream::Stage::kEnding;
    send_headers(stream, "");
}

bool Connection::accept(Stream& stream, const std::string& lease, std::size_t first_env_id,
                        std::size_t num_envs) {
    if (stream.stage != Stream::Stage::kDecision || stream.method != Stream::Method::kAct ||
        stream.was_accepted) {
        return false;
    }
    stream.accept(first_env_id, num_envs);
    // Tells the actor that from now on its environments are waited for.
    send_headers(stream, lease);
    go_on(stream);
    return true;
}

void Connection::end(Stream& stream, int code, const std::string& details, const char* reason,
                     bool is_finished) {
    if (stream.stage == Stream::Stage::kEnding) return;
    stream.stage = Stream::Stage::kEnding;
    stream.status_code = code;
    stream.status_message = details;
    stream.is_finished = is_finished;
    batcher_.end(stream);
    if (stream.was_accepted && !stream.is_end_told) {
        stream.is_end_told = true;
        owner_.call_has_ended(stream, reason);
    }
    if (stream.has_sent_headers) {
        nghttp2_session_resume_data(session_, stream.id);
    } else {
        send_status_only(stream);
    }
}

void Connection::answer(Stream& stream, const std::vector<const std::uint8_t*>& columns,
                        const std::vector<std::size_t>& sizes, std::size_t first, std::size_t n) {
    if (stream.is_closed || stream.stage != Stream::Stage::kOpen) return;
    stream.answer(columns, sizes, first, n);
    nghttp2_session_resume_data(session_, stream.id);
}

void Connection::evict(Stream& stream) {
    if (!stream.is_closed && stream.stage == Stream::Stage::kOpen) stream.evict();
}

bool Connection::keep_alive(Clock::time_point now, Clock::duration keepalive) {
    if (now - last_read_ < keepalive) {
        is_pinged_ = false;
    } else if (!is_pinged_) {
        is_pinged_ = true;
        pinged_ = now;
        nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr);
    } else if (now - pinged_ >= keepalive) {
        return false;
    }
    return true;
}

void Connection::look_after(Clock::time_point now, Clock::time_point silent_since) {
    for (const auto& item : streams_) {
        Stream& stream = *item.second;
        if (stream.has_deadline && now >= stream.deadline) {
            end(stream, kDeadlineExceeded, "Deadline Exceeded", "left");
        } else if (stream.stage == Stream::Stage::kOpen) {
            batcher_.forget_if_silent(stream, silent_since);
        }
    }
}

void Connection::shut_down(bool is_finished) {
    is_shut_down_ = true;
    for (const auto& item : streams_) {
        Stream& stream = *item.second;
        if (is_finished && stream.was_accepted) {
            end(stream, kOk, "", "dismissed", true);
        } else {
            end(stream, kUnavailable, "the learner is shutting down", "dismissed");
        }
    }
    nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE,
                          nghttp2_session_get_last_proc_stream_id(session_), NGHTTP2_NO_ERROR,
                          nullptr, 0);
}

void Connection::finish_writing() {
    if (fd_ >= 0) ::shutdown(fd_, SHUT_WR);
}

void Connection::lose() {
    for (const auto& item : std::exchange(streams_, {})) remove(*item.second, "lost");
}

void Connection::close_stream(Stream& stream, std::uint32_t error_code) {
    const auto found = streams_.find(stream.id);
    const std::shared_ptr<Stream> kept = found->second;
    streams_.erase(found);
    nghttp2_session_set_stream_user_data(session_, stream.id, nullptr);
    const bool is_wanted = stream.is_half_closed || error_code == NGHTTP2_NO_ERROR ||
                           error_code == NGHTTP2_CANCEL;
    remove(stream, is_wanted ? "left" : "lost");
}

void Connection::remove(Stream& stream, const char* reason) {
    stream.is_closed = true;
    batcher_.end(stream);
    if (stream.was_accepted && !stream.is_end_told) {
        stream.is_end_told = true;
        owner_.call_has_ended(stream, reason);
    }
    owner_.remove_call(stream.call);
}

void Connection::send_headers(Stream& stream, const std::string& lease) {
    stream.has_sent_headers = true;
    nghttp2_nv headers[4];
    std::size_t count = 0;
    headers[count++] = header(":status", "200");
    headers[count++] = header("content-type", kContentType);
    headers[count++] = header("grpc-accept-encoding", "identity");
    if (!lease.empty()) headers[count++] = header("seed-rl-lease", lease);
    nghttp2_data_provider provider;
    provider.source.ptr = &stream;
    provider.read_callback = Callbacks::read_answer;
    nghttp2_submit_response(session_, stream.id, headers, count, &provider);
}

void Connection::send_status_only(Stream& stream) {
    stream.has_sent_headers = true;
    const std::string status = std::to_string(stream.status_code);
    const std::string message = percent_encode(stream.status_message);
    const nghttp2_nv headers[] = {
        header(":status", "200"),
        header("content-type", kContentType),
        header("grpc-status", status),
        header("grpc-message", message),
    };
    nghttp2_submit_response(session_, stream.id, headers, std::size(headers), nullptr);
}

void Connection::send_http_status(Stream& stream, const char* status) {
    stream.stage = Stream::Stage::kEnding;
    stream.has_sent_headers = true;
    const nghttp2_nv headers[] = {header(":status", status)};
    nghttp2_submit_response(session_, stream.id, headers, std::size(headers), nullptr);
}

}  // namespace seed_rl
