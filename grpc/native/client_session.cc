#include "client_session.h"

#include <algorithm>
#include <charconv>
#include <new>

namespace seed_rl {
namespace {

constexpr std::int32_t kStreamWindow = 8 << 20;
constexpr std::int32_t kConnectionWindow = 16 << 20;
constexpr std::uint32_t kMaxFrameBytes = 1 << 20;
// A status of 4,000 characters, each three times as long by percent-encoding, fits several times.
constexpr std::uint32_t kMaxHeaderListBytes = 64 << 10;
constexpr std::size_t kHeaderOverhead = 32;  // of each, as SETTINGS_MAX_HEADER_LIST_SIZE counts
constexpr std::size_t kMaxControlBytes = 64 << 10;
constexpr std::size_t kMaxPieces = 64;
// Up to here a copy is cheaper than one more piece to be written.
constexpr std::size_t kMaxCopiedBytes = 4096;
constexpr std::size_t kMaxGoawayBytes = 200;
// Buffers grow with what arrives, not with what is announced.
constexpr std::size_t kMaxReservedBytes = 1 << 20;

const std::string* find(const Metadata& metadata, std::string_view name) {
    for (const auto& [key, value] : metadata) {
        if (key == name) return &value;
    }
    return nullptr;
}

int number(const std::string* text) {  // -1 where it is none
    if (!text) return -1;
    int value = -1;
    const char* const end = text->data() + text->size();
    const auto [read, error] = std::from_chars(text->data(), end, value);
    return error == std::errc() && read == end ? value : -1;
}

// gRPC's "HTTP to gRPC status code mapping", for answers without a status.
int status_of_http(int http) {
    switch (http) {
        case 400: return kInternal;
        case 401: return kUnauthenticated;
        case 403: return kPermissionDenied;
        case 404: return kUnimplemented;
        case 429:
        case 502:
        case 503:
        case 504: return kUnavailable;
        default: return kUnknown;
    }
}

// gRPC's "HTTP2 transport mapping" of the reasons for a reset.
int status_of_reset(std::uint32_t error_code) {
    switch (error_code) {
        case NGHTTP2_REFUSED_STREAM: return kUnavailable;
        case NGHTTP2_CANCEL: return kCancelled;
        case NGHTTP2_ENHANCE_YOUR_CALM: return kResourceExhausted;
        case NGHTTP2_INADEQUATE_SECURITY: return kPermissionDenied;
        default: return kInternal;
    }
}

bool is_grpc(std::string_view content_type) {
    constexpr std::string_view kType = "application/grpc";
    if (content_type.substr(0, kType.size()) != kType) return false;
    content_type.remove_prefix(kType.size());
    return content_type.empty() || content_type[0] == '+' || content_type[0] == ';';
}

ClientSession* self(void* user_data) { return static_cast<ClientSession*>(user_data); }

}  // namespace

nghttp2_session* ClientSession::make_session(ClientSession* session) {
    nghttp2_session_callbacks* callbacks = nullptr;
    if (nghttp2_session_callbacks_new(&callbacks)) throw std::bad_alloc();
    const std::unique_ptr<nghttp2_session_callbacks, decltype(&nghttp2_session_callbacks_del)>
        freed(callbacks, nghttp2_session_callbacks_del);

    // nghttp2 is C: no exception may pass through it. Only memory can run out in these.
    nghttp2_session_callbacks_set_send_callback(
        callbacks,
        [](nghttp2_session*, const std::uint8_t* data, std::size_t size, int,
           void* user_data) -> ssize_t {
            try {
                if (self(user_data)->is_output_full()) return NGHTTP2_ERR_WOULDBLOCK;
                self(user_data)->append_control(data, size);
                return static_cast<ssize_t>(size);
            } catch (const std::bad_alloc&) {
                return NGHTTP2_ERR_CALLBACK_FAILURE;
            }
        });
    nghttp2_session_callbacks_set_send_data_callback(
        callbacks,
        [](nghttp2_session*, nghttp2_frame* frame, const std::uint8_t* frame_header,
           std::size_t size, nghttp2_data_source*, void* user_data) -> int {
            try {
                if (self(user_data)->is_output_full()) return NGHTTP2_ERR_WOULDBLOCK;
                return self(user_data)->send_data(frame->hd.stream_id, frame_header, size)
                           ? 0
                           : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
            } catch (const std::bad_alloc&) {
                return NGHTTP2_ERR_CALLBACK_FAILURE;
            }
        });
    // Without this, frames have at most 16 KiB.
    nghttp2_session_callbacks_set_data_source_read_length_callback(
        callbacks,
        [](nghttp2_session*, std::uint8_t, std::int32_t, std::int32_t session_window,
           std::int32_t stream_window, std::uint32_t peer_max_frame_bytes, void*) -> ssize_t {
            return std::min({session_window, stream_window,
                             static_cast<std::int32_t>(
                                 std::min(peer_max_frame_bytes, kMaxFrameBytes))});
        });
    nghttp2_session_callbacks_set_on_begin_headers_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, void* user_data) -> int {
            if (self(user_data)->is_call(frame->hd.stream_id)) {
                self(user_data)->block_.clear();
                self(user_data)->block_bytes_ = 0;
            }
            return 0;
        });
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks,
        [](nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name,
           std::size_t name_size, const std::uint8_t* value, std::size_t value_size, std::uint8_t,
           void* user_data) -> int {
            try {
                if (!self(user_data)->is_call(frame->hd.stream_id)) return 0;
                return self(user_data)->add_header(view(name, name_size), view(value, value_size))
                           ? 0
                           : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
            } catch (const std::bad_alloc&) {
                return NGHTTP2_ERR_CALLBACK_FAILURE;
            }
        });
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        callbacks,
        [](nghttp2_session*, std::uint8_t, std::int32_t stream, const std::uint8_t* data,
           std::size_t size, void* user_data) -> int {
            try {
                if (self(user_data)->is_call(stream)) self(user_data)->add_data(data, size);
                return 0;
            } catch (const std::bad_alloc&) {
                return NGHTTP2_ERR_CALLBACK_FAILURE;
            }
        });
    nghttp2_session_callbacks_set_on_frame_recv_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, void* user_data) -> int {
            try {
                ClientSession* const session = self(user_data);
                const bool is_end = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
                if (frame->hd.type == NGHTTP2_GOAWAY) {
                    session->on_goaway(frame->goaway);
                } else if (!session->is_call(frame->hd.stream_id)) {
                    return 0;
                } else if (frame->hd.type == NGHTTP2_HEADERS) {
                    session->end_headers(is_end);
                } else if (frame->hd.type == NGHTTP2_DATA && is_end) {
                    session->end_call_of_peer(kUnknown,
                                              "the learner ended the call without a status");
                }
                return 0;
            } catch (const std::bad_alloc&) {
                return NGHTTP2_ERR_CALLBACK_FAILURE;
            }
        });
    nghttp2_session_callbacks_set_on_stream_close_callback(
        callbacks,
        [](nghttp2_session*, std::int32_t stream, std::uint32_t error_code,
           void* user_data) -> int {
            try {
                if (self(user_data)->is_call(stream)) self(user_data)->on_stream_close(error_code);
                return 0;
            } catch (const std::bad_alloc&) {
                return NGHTTP2_ERR_CALLBACK_FAILURE;
            }
        });
    nghttp2_session_callbacks_set_error_callback2(
        callbacks,
        [](nghttp2_session*, int, const char* text, std::size_t size, void* user_data) -> int {
            try {
                self(user_data)->library_error_.assign(text, std::min(size, kMaxGoawayBytes));
                return 0;
            } catch (const std::bad_alloc&) {
                return NGHTTP2_ERR_CALLBACK_FAILURE;
            }
        });

    nghttp2_session* made = nullptr;
    if (nghttp2_session_client_new(&made, callbacks, session)) throw std::bad_alloc();
    return made;
}

ClientSession::ClientSession(std::string authority)
    : authority_(std::move(authority)), session_(make_session(this)) {
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindow},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, kMaxFrameBytes},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kMaxHeaderListBytes},
    };
    if (nghttp2_submit_settings(session_.get(), NGHTTP2_FLAG_NONE, settings, std::size(settings)) ||
        nghttp2_session_set_local_window_size(session_.get(), NGHTTP2_FLAG_NONE, 0,
                                              kConnectionWindow)) {
        throw std::bad_alloc();
    }
}

bool ClientSession::is_usable() const {
    return !is_broken_ && !is_going_away_ && !is_output_discarded_ &&
           (stream_ == 0 || has_ended_) && !is_sending();
}

void ClientSession::start_call(const std::string& path, const Metadata& metadata,
                               const std::string& timeout) {
    std::vector<nghttp2_nv> headers = {
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", path),
        header(":authority", authority_),
        header("te", "trailers"),
        header("content-type", "application/grpc"),
        header("user-agent", "seed_rl"),
    };
    if (!timeout.empty()) headers.push_back(header("grpc-timeout", timeout));
    for (const auto& [name, value] : metadata) headers.push_back(header(name, value));

    nghttp2_data_provider provider;
    provider.source.ptr = nullptr;
    provider.read_callback = [](nghttp2_session*, std::int32_t stream, std::uint8_t*,
                                std::size_t size, std::uint32_t* flags, nghttp2_data_source*,
                                void* user_data) -> ssize_t {
        if (!self(user_data)->is_call(stream)) return NGHTTP2_ERR_DEFERRED;
        const std::size_t read = self(user_data)->read_message(size, flags);
        if (!read && !(*flags & NGHTTP2_DATA_FLAG_EOF)) return NGHTTP2_ERR_DEFERRED;
        return static_cast<ssize_t>(read);
    };

    has_headers_ = has_ended_ = is_half_closed_ = is_awaiting_ = has_answer_ = false;
    headers_.clear();
    library_error_.clear();
    status_ = Status();
    message_.clear();
    message_sent_ = 0;
    prefix_size_ = 0;
    stream_ = nghttp2_submit_request(session_.get(), nullptr, headers.data(), headers.size(),
                                     &provider, nullptr);
    if (stream_ < 0) {
        const int error = stream_;
        stream_ = 0;
        finish(kUnavailable, nghttp2_strerror(error));
    }
}

std::uint8_t* ClientSession::begin_message(std::size_t bytes) {
    if (!has_call() || has_ended_ || is_half_closed_ || is_sending()) return nullptr;
    message_.resize(bytes);
    message_sent_ = bytes;  // none of it may be sent yet
    return message_.data();
}

void ClientSession::end_message(std::size_t max_answer_bytes, bool is_last) {
    message_sent_ = 0;
    is_awaiting_ = true;
    max_answer_bytes_ = max_answer_bytes;
    is_half_closed_ = is_last;
    nghttp2_session_resume_data(session_.get(), stream_);
}

void ClientSession::half_close() {
    is_half_closed_ = true;
    nghttp2_session_resume_data(session_.get(), stream_);
}

void ClientSession::end_call(int code, std::string details) {
    if (!has_call() || has_ended_) return;
    finish(code, std::move(details));
    // The stream is left behind; what still comes for it is skipped.
    nghttp2_submit_rst_stream(session_.get(), NGHTTP2_FLAG_NONE, stream_, NGHTTP2_CANCEL);
}

void ClientSession::end_call_of_peer(int code, std::string details) {
    if (is_half_closed_ && message_sent_ == message_.size()) {
        finish(code, std::move(details));  // and the stream has ended by itself
    } else {
        end_call(code, std::move(details));
    }
}

void ClientSession::ping() {
    nghttp2_submit_ping(session_.get(), NGHTTP2_FLAG_NONE, nullptr);
}

void ClientSession::say_goodbye() {
    nghttp2_submit_goaway(session_.get(), NGHTTP2_FLAG_NONE, 0, NGHTTP2_NO_ERROR, nullptr, 0);
}

void ClientSession::take_answer(std::vector<std::uint8_t>& buffer) {
    answer_.swap(buffer);
    has_answer_ = is_awaiting_ = false;
    prefix_size_ = 0;
}

bool ClientSession::is_sending() const {
    if (message_sent_ < message_.size() && !has_ended_) return true;
    return std::any_of(pieces_.begin() + static_cast<std::ptrdiff_t>(next_piece_), pieces_.end(),
                       [](const Piece& piece) { return piece.is_message; });
}

void ClientSession::feed(const std::uint8_t* data, std::size_t size) {
    if (is_broken_) return;
    const ssize_t fed = nghttp2_session_mem_recv(session_.get(), data, size);
    if (fed < 0) {
        fail(kInternal, std::string("the learner's HTTP/2 is wrong: ") +
                            nghttp2_strerror(static_cast<int>(fed)));
        return;
    }
    check_over();
}

void ClientSession::fail(int code, const std::string& details) {
    if (is_broken_) return;
    is_broken_ = true;
    if (has_call() && !has_ended_) finish(code, details + goaway_text());
}

bool ClientSession::produce() {
    if (has_output()) return true;
    pieces_.clear();
    control_.clear();
    next_piece_ = 0;
    if (is_output_discarded_ || is_broken_) return false;
    if (const int error = nghttp2_session_send(session_.get())) {
        fail(kInternal, std::string("HTTP/2: ") + nghttp2_strerror(error));
        return false;
    }
    check_over();
    return has_output();
}

std::size_t ClientSession::output(iovec* pieces, std::size_t max_pieces) const {
    const std::size_t count = std::min(pieces_.size() - next_piece_, max_pieces);
    for (std::size_t i = 0; i < count; ++i) {
        const Piece& piece = pieces_[next_piece_ + i];
        const std::vector<std::uint8_t>& bytes = piece.is_message ? message_ : control_;
        pieces[i] = {const_cast<std::uint8_t*>(bytes.data()) + piece.offset, piece.size};
    }
    return count;
}

void ClientSession::written(std::size_t size) {
    while (size) {
        Piece& piece = pieces_[next_piece_];
        const std::size_t part = std::min(size, piece.size);
        piece.offset += part;
        piece.size -= part;
        size -= part;
        if (!piece.size) ++next_piece_;
    }
}

void ClientSession::discard_output() {
    is_output_discarded_ = true;
    pieces_.clear();
    control_.clear();
    next_piece_ = 0;
}

void ClientSession::append_control(const std::uint8_t* data, std::size_t size) {
    if (pieces_.empty() || pieces_.back().is_message) pieces_.push_back({control_.size(), 0, false});
    control_.insert(control_.end(), data, data + size);
    pieces_.back().size += size;
}

bool ClientSession::is_output_full() const {
    return control_.size() >= kMaxControlBytes || pieces_.size() >= kMaxPieces;
}

void ClientSession::finish(int code, std::string details) {
    has_ended_ = true;
    if (!has_answer_) is_awaiting_ = false;
    status_.code = code;
    status_.details = std::move(details);
}

// nghttp2 tells of the end of a connection only if it is asked.
void ClientSession::check_over() {
    if (is_broken_ || nghttp2_session_want_read(session_.get())) return;
    if (is_going_away_) {
        fail(kUnavailable, "the learner closed the connection");
    } else {
        fail(kInternal, "the learner's HTTP/2 is wrong" +
                            (library_error_.empty() ? "" : ": " + library_error_));
    }
}

std::string ClientSession::goaway_text() const { return goaway_.empty() ? "" : ": " + goaway_; }

std::size_t ClientSession::read_message(std::size_t size, std::uint32_t* flags) const {
    const std::size_t rest = message_.size() - message_sent_;
    const std::size_t read = std::min(size, rest);
    // Without any bytes, an end can only be said in a frame that nghttp2 makes itself.
    if (read) *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (read == rest && is_half_closed_) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return read;
}

bool ClientSession::send_data(std::int32_t stream, const std::uint8_t* frame_header,
                              std::size_t size) {
    constexpr std::size_t kFrameHeaderBytes = 9;
    // nghttp2 may have held back a frame of a call that has ended, and whose message is gone.
    if (stream != stream_ || size > message_.size() - message_sent_) return false;
    append_control(frame_header, kFrameHeaderBytes);
    if (size <= kMaxCopiedBytes) {
        append_control(message_.data() + message_sent_, size);
    } else {
        pieces_.push_back({message_sent_, size, true});
    }
    message_sent_ += size;
    return true;
}

bool ClientSession::add_header(std::string_view name, std::string_view value) {
    block_bytes_ += name.size() + value.size() + kHeaderOverhead;
    if (block_bytes_ > kMaxHeaderListBytes) {
        finish(kInternal, "the learner sent more than " + std::to_string(kMaxHeaderListBytes) +
                              " bytes of headers");
        return false;
    }
    block_.emplace_back(name, value);
    return true;
}

void ClientSession::end_headers(bool is_end) {
    if (number(find(block_, ":status")) / 100 == 1) return;  // the answer's are still to come
    if (has_headers_) {
        finish_by_trailers(false);
        return;
    }
    headers_.swap(block_);
    has_headers_ = true;
    if (is_end) {
        block_ = headers_;
        finish_by_trailers(true);
        return;
    }
    const int http_status = number(find(headers_, ":status"));
    const std::string* const content_type = find(headers_, "content-type");
    if (http_status != 200) {
        end_call(status_of_http(http_status), "the learner answered with HTTP status " +
                                                  std::to_string(http_status));
    } else if (!content_type || !is_grpc(*content_type)) {
        end_call(kUnknown, "saw content-type " + (content_type ? *content_type : "none") +
                               ", wanted application/grpc");
    }
}

void ClientSession::finish_by_trailers(bool is_only_headers) {
    const std::string* const code_text = find(block_, "grpc-status");
    const std::string* const message = find(block_, "grpc-message");
    const int http_status = is_only_headers ? number(find(block_, ":status")) : 200;
    int code = kUnknown;
    std::string details = message ? percent_decode(*message) : "";
    if (code_text) {
        code = number(code_text);
        if (code < kOk || code > kUnauthenticated) {
            code = kUnknown;
            details = "saw grpc-status " + *code_text + ", wanted a number from 0 to 16";
        }
    } else if (http_status != 200) {
        code = status_of_http(http_status);
        details = "the learner answered with HTTP status " + std::to_string(http_status);
    } else {
        details = "the learner ended the call without a status";
    }
    if (code == kOk && prefix_size_ && !has_answer_) {
        code = kInternal;
        details = "the learner ended the call within a message";
    }
    status_.trailers.swap(block_);
    end_call_of_peer(code, std::move(details));
}

void ClientSession::add_data(const std::uint8_t* data, std::size_t size) {
    while (size && !has_ended_) {
        if (!is_awaiting_ || has_answer_) {
            end_call(kInternal, "the learner sent more than one answer");
            return;
        }
        if (prefix_size_ < kPrefixBytes) {
            prefix_[prefix_size_++] = *data++;
            --size;
            if (prefix_size_ == kPrefixBytes) end_prefix();
            continue;
        }
        const std::size_t part = std::min(size, answer_bytes_ - answer_.size());
        answer_.insert(answer_.end(), data, data + part);
        data += part;
        size -= part;
        has_answer_ = answer_.size() == answer_bytes_;
    }
}

void ClientSession::end_prefix() {
    answer_.clear();
    answer_bytes_ = message_length(prefix_);
    if (prefix_[0]) {
        end_call(kInternal, prefix_[0] == 1 ? "the learner sent a compressed message, wanted none"
                                            : "the learner sent what is no message of gRPC");
    } else if (answer_bytes_ > max_answer_bytes_) {
        end_call(kInternal, "the learner sent a message of " + std::to_string(answer_bytes_) +
                                " bytes, wanted at most " + std::to_string(max_answer_bytes_));
    } else {
        answer_.reserve(std::min(answer_bytes_, kMaxReservedBytes));
        has_answer_ = answer_bytes_ == 0;
    }
}

void ClientSession::on_goaway(const nghttp2_goaway& frame) {
    is_going_away_ = true;
    goaway_.clear();
    if (frame.error_code != NGHTTP2_NO_ERROR) goaway_ = nghttp2_http2_strerror(frame.error_code);
    if (frame.opaque_data_len) {
        if (!goaway_.empty()) goaway_ += ", ";
        goaway_ += view(frame.opaque_data, std::min(frame.opaque_data_len, kMaxGoawayBytes));
    }
}

void ClientSession::on_stream_close(std::uint32_t error_code) {
    if (error_code == NGHTTP2_REFUSED_STREAM && is_going_away_) {
        finish(kUnavailable, "the learner takes no calls" + goaway_text());
        return;
    }
    std::string details =
        std::string("the stream was reset: ") + nghttp2_http2_strerror(error_code);
    if (!library_error_.empty()) details += ", " + library_error_;
    finish(status_of_reset(error_code), std::move(details));
}

}  // namespace seed_rl
