// The client's end of an HTTP/2 connection without its socket: bytes of the peer are fed in, bytes
// for the peer are taken out. Carries one gRPC call at a time.
#pragma once

#include <nghttp2/nghttp2.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire.h"

namespace seed_rl {

using Metadata = std::vector<std::pair<std::string, std::string>>;

// How a call ended.
struct Status {
    int code = kOk;
    std::string details;
    Metadata trailers;
};

// Whatever the peer sends, memory stays bounded: one answer of at most the size that was allowed
// for it, one block of headers, and output that is only made once the last was written.
class ClientSession {
public:
    explicit ClientSession(std::string authority);
    ClientSession(const ClientSession&) = delete;
    ClientSession& operator=(const ClientSession&) = delete;

    // Whether another call can be started.
    bool is_usable() const;
    // Starts a call; the last one, if any, has ended. `timeout` is the value of grpc-timeout, or
    // empty.
    void start_call(const std::string& path, const Metadata& metadata, const std::string& timeout);

    // The buffer for a message of that many bytes, its prefix included; null where the call has
    // ended or the last message is not written yet. Valid until the next call of any method.
    std::uint8_t* begin_message(std::size_t bytes);
    // Sends what is in the buffer.
    //   max_answer_bytes: a larger answer ends the call.
    //   is_last: half-closes the stream after it.
    void end_message(std::size_t max_answer_bytes, bool is_last);
    // No more messages.
    void half_close();
    // Resets the stream, if it is still open, and ends the call.
    void end_call(int code, std::string details);
    void ping();
    // Ends the connection politely, once the output is written.
    void say_goodbye();

    // Of the current call.
    bool has_call() const { return stream_ > 0; }
    bool has_headers() const { return has_headers_; }
    const Metadata& headers() const { return headers_; }
    bool is_awaiting() const { return is_awaiting_; }  // sent a message and took no answer yet
    bool has_answer() const { return has_answer_; }
    // Exchanges the answer, without its prefix, for a buffer that can be reused.
    void take_answer(std::vector<std::uint8_t>& buffer);
    bool has_ended() const { return has_ended_; }
    const Status& status() const { return status_; }
    // Whether a part of the message waits for the peer's windows, or to be written.
    bool is_sending() const;

    // What came from the peer, cut anywhere.
    void feed(const std::uint8_t* data, std::size_t size);
    // The connection is over.
    void fail(int code, const std::string& details);
    bool is_broken() const { return is_broken_; }

    // Makes output where there is none left, and tells whether there is any.
    bool produce();
    // Whether there is output that is not written yet, without making any.
    bool has_output() const { return next_piece_ < pieces_.size(); }
    // The first pieces of the output. Returns their number.
    std::size_t output(iovec* pieces, std::size_t max_pieces) const;
    // That many bytes of it were written.
    void written(std::size_t size);
    // Nothing can be written any more, though there may still be something to be read.
    void discard_output();

private:
    struct Free {
        void operator()(nghttp2_session* session) const { nghttp2_session_del(session); }
    };
    // A part of the output: of control_, or of message_ where it was too large to be copied.
    struct Piece {
        std::size_t offset, size;
        bool is_message;
    };

    static nghttp2_session* make_session(ClientSession* self);

    void append_control(const std::uint8_t* data, std::size_t size);
    bool is_output_full() const;
    bool is_call(std::int32_t stream) const { return stream == stream_ && !has_ended_; }
    void finish(int code, std::string details);
    void end_call_of_peer(int code, std::string details);
    void check_over();
    std::string goaway_text() const;
    std::size_t read_message(std::size_t size, std::uint32_t* flags) const;
    bool send_data(std::int32_t stream, const std::uint8_t* frame_header, std::size_t size);
    bool add_header(std::string_view name, std::string_view value);
    void end_headers(bool is_end);
    void finish_by_trailers(bool is_only_headers);
    void add_data(const std::uint8_t* data, std::size_t size);
    void end_prefix();
    void on_goaway(const nghttp2_goaway& frame);
    void on_stream_close(std::uint32_t error_code);

    const std::string authority_;
    std::unique_ptr<nghttp2_session, Free> session_;
    bool is_broken_ = false;
    bool is_going_away_ = false;  // the peer takes no further calls
    bool is_output_discarded_ = false;
    std::string goaway_;         // what it said
    std::string library_error_;  // of nghttp2: what is wrong with the last that was fed

    // The call.
    std::int32_t stream_ = 0;
    bool has_headers_ = false;
    bool has_ended_ = false;
    bool is_half_closed_ = false;
    Metadata headers_;
    Status status_;
    Metadata block_;  // the headers that are being read
    std::size_t block_bytes_ = 0;

    // Its message.
    std::vector<std::uint8_t> message_;
    std::size_t message_sent_ = 0;  // handed to the output

    // Its answer.
    bool is_awaiting_ = false;
    bool has_answer_ = false;
    std::uint8_t prefix_[kPrefixBytes];
    std::size_t prefix_size_ = 0;
    std::size_t answer_bytes_ = 0;
    std::size_t max_answer_bytes_ = 0;
    std::vector<std::uint8_t> answer_;

    // The output.
    std::vector<std::uint8_t> control_;
    std::vector<Piece> pieces_;
    std::size_t next_piece_ = 0;
};

}  // namespace seed_rl
