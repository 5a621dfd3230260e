// Fuzzes the client's session: libFuzzer's input is a script of what a learner sends and of what
// the actor does meanwhile.
//
// With an even first byte the script writes frames, whole answers cut anywhere among them. With an
// odd one the rest is fed as it is, once a call is under way.
#include <sys/uio.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client_session.h"
#include "frames.h"
#include "rows.h"
#include "script.h"

namespace seed_rl::check {
namespace {

constexpr std::size_t kMaxAnswerBytes = 300;

#define REQUIRE(condition, what)                                                  \
    do {                                                                          \
        if (!(condition)) {                                                       \
            std::fprintf(stderr, "fuzz_client: %s, line %d\n", what, __LINE__);   \
            std::abort();                                                         \
        }                                                                         \
    } while (false)

class Run {
public:
    Run(const std::uint8_t* data, std::size_t size) : script_(data, size), session_("localhost") {}

    void go() {
        const std::uint8_t mode = script_.byte();
        Bytes start;
        append_settings(start, {});
        if ((mode & 2) == 0) feed(start);
        start_call();
        if ((mode & 1) != 0) {
            send_message(20);
            while (!script_.is_over()) feed(script_.bytes(1 + script_.byte()));
            look();
            return;
        }
        for (int i = 0; i < 400 && !script_.is_over(); ++i) step();
        look();
        write(1 << 20);
    }

private:
    void feed(const Bytes& bytes) {
        std::size_t done = 0;
        while (done < bytes.size()) {
            // A chunk has memory of its own, so that a read past its end is seen.
            const std::size_t size =
                std::min(cuts_ ? 1 + script_.below(64) : bytes.size(), bytes.size() - done);
            const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(done);
            const Bytes chunk(first, first + static_cast<std::ptrdiff_t>(size));
            session_.feed(chunk.data(), chunk.size());
            done += size;
            look();
        }
    }

    // What holds at all times.
    void look() {
        if (!session_.has_call()) return;
        REQUIRE(!session_.is_broken() || session_.has_ended(), "a call outlives its connection");
        if (session_.has_ended()) {
            const Status& status = session_.status();
            REQUIRE(status.code >= kOk && status.code <= kUnauthenticated, "no status of gRPC");
        }
        if (session_.has_answer() && script_.flip()) {
            session_.take_answer(answer_);
            REQUIRE(answer_.size() <= kMaxAnswerBytes, "an answer that was not allowed");
            REQUIRE(!session_.has_answer(), "an answer twice");
        }
    }

    void start_call() {
        if (!session_.is_usable()) return;
        session_.start_call("/seed_rl.Seed/Act", {{"seed-rl-lease", "lease"}},
                            script_.flip() ? "10S" : "");
        id_ += 2;
        write(1 << 20);
    }

    void send_message(std::size_t size) {
        std::uint8_t* const out = session_.begin_message(size);
        if (out == nullptr) return;
        for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<std::uint8_t>(i);
        session_.end_message(kMaxAnswerBytes, script_.below(8) == 0);
    }

    // As a socket that takes so many bytes. Reads them all.
    void write(std::size_t size) {
        while (size > 0 && session_.produce()) {
            iovec pieces[4];
            const std::size_t count = session_.output(pieces, 4);
            REQUIRE(count > 0, "output without a piece");
            std::size_t written = 0;
            for (std::size_t i = 0; i < count && size > written; ++i) {
                const std::size_t part = std::min(pieces[i].iov_len, size - written);
                const auto* data = static_cast<const std::uint8_t*>(pieces[i].iov_base);
                for (std::size_t j = 0; j < part; ++j) sum_ = sum_ * 31 + data[j];
                written += part;
            }
            session_.written(written);
            size -= written;
        }
        look();
    }

    std::uint32_t choose_id() {
        const std::uint8_t how = script_.byte() % 8;
        return how == 0 ? script_.byte() : how == 1 && id_ > 2 ? id_ - 2 : id_;
    }

    void step() {
        Bytes out;
        switch (script_.byte() % 24) {
            case 0:
                start_call();
                break;
            case 1:
            case 2:
                send_message(script_.byte() * (script_.flip() ? 1 : 200));
                break;
            case 3:
            case 4:
                write(script_.byte() * (script_.flip() ? 1 : 100));
                break;
            case 5:
                send_headers({{":status", "200"}, {"content-type", "application/grpc"}}, false);
                break;
            case 6:
                send_headers({{"grpc-status", std::to_string(script_.below(20))},
                              {"grpc-message", text()}},
                             true);
                break;
            case 7:
                send_headers({{":status", script_.flip() ? "200" : std::to_string(script_.byte())},
                              {"content-type", "application/grpc" + text()},
                              {"grpc-status", text()},
                              {"grpc-message", "%E4%" + text()}},
                             script_.flip());
                break;
            case 8:
                send_headers({{text(), text()}, {"x", std::string(script_.byte() * 300, 'x')}},
                             script_.flip());
                break;
            case 9:
            case 10: {
                const Bytes answer =
                    framed(Bytes(script_.byte() * (script_.below(4) == 0 ? 2 : 1)),
                           script_.below(16) == 0);
                append(rest_, answer);
                send_rest(script_.flip() ? rest_.size() : script_.byte());
                break;
            }
            case 11:
                send_rest(script_.byte());
                break;
            case 12: {
                const std::uint32_t id = choose_id();
                append_frame(out, kData, script_.byte() & (kEndStream | kPadded), id,
                             script_.bytes(script_.byte()));
                feed(out);
                break;
            }
            case 13: {
                const std::uint8_t type = script_.byte() % 12;
                const std::uint8_t flags = script_.byte();
                const std::uint32_t id = choose_id();
                append_frame(out, type, flags, id, script_.bytes(script_.byte()));
                feed(out);
                break;
            }
            case 14:
                append_frame(out, kRstStream, choose_id(), script_.below(14));
                feed(out);
                break;
            case 15:
                append_frame(out, kWindowUpdate, script_.flip() ? choose_id() : 0, script_.u32());
                feed(out);
                break;
            case 16: {
                const auto identifier = static_cast<std::uint16_t>(1 + script_.below(6));
                append_settings(out, {{identifier, script_.flip() ? script_.u32() : script_.byte()}});
                feed(out);
                break;
            }
            case 17: {
                Bytes payload;
                append_u32(payload, script_.byte());
                append_u32(payload, script_.below(14));
                append(payload, script_.bytes(script_.byte()));
                append_frame(out, kGoaway, 0, 0, payload);
                feed(out);
                break;
            }
            case 18:
                append_frame(out, kPing, script_.byte() & kAck, 0, Bytes(8));
                feed(out);
                break;
            case 19:
                feed(script_.bytes(script_.byte()));
                break;
            case 20:
                cuts_ = !cuts_;
                break;
            case 21:
                leave();
                break;
            case 22:
                session_.ping();
                break;
            default:
                if (session_.has_call() && !session_.has_ended()) session_.half_close();
                break;
        }
    }

    void leave() {
        switch (script_.below(8)) {
            case 0: session_.fail(kUnavailable, "the connection is lost"); break;
            case 1: session_.say_goodbye(); break;
            case 2: session_.discard_output(); break;
            default: session_.end_call(kCancelled, "enough"); break;
        }
    }

    std::string text() {
        const Bytes some = script_.bytes(script_.below(24));
        return std::string(some.begin(), some.end());
    }

    void send_headers(const Headers& headers, bool ends) {
        const Bytes block = header_block(headers);
        const std::size_t first = std::min<std::size_t>(script_.byte(), block.size());
        const std::uint8_t end = ends ? kEndStream : 0;
        const std::uint32_t id = choose_id();
        Bytes out;
        if (first == 0 || first == block.size()) {
            append_frame(out, kHeaders, end | kEndHeaders, id, block);
        } else {
            append_frame(out, kHeaders, end, id, block.data(), first);
            append_frame(out, kContinuation, kEndHeaders, id, block.data() + first,
                         block.size() - first);
        }
        feed(out);
    }

    void send_rest(std::size_t size) {
        size = std::min(size, rest_.size());
        Bytes out;
        append_frame(out, kData, 0, choose_id(), rest_.data(), size);
        rest_.erase(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(size));
        feed(out);
    }

    Script script_;
    ClientSession session_;
    std::uint32_t id_ = static_cast<std::uint32_t>(-1);  // of the latest call: 1, 3, ...
    Bytes rest_;  // of answers
    Bytes answer_;
    bool cuts_ = false;
    std::uint64_t sum_ = 0;
};

}  // namespace
}  // namespace seed_rl::check

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    seed_rl::check::Run(data, size).go();
    return 0;
}
