// Fuzzes a connection of the server: libFuzzer's input is a script of what two peers send and what
// the learner does meanwhile.
//
// An even first byte lets the script write frames, whole messages cut anywhere among them, so that
// it gets past HTTP/2's preface, HPACK and gRPC's prefix. An odd one sends the rest as it is, after
// the preface or even without. Whatever arrives, the rows in a batch have to be good.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

#include "batcher.h"
#include "connection.h"
#include "frames.h"
#include "rows.h"
#include "script.h"

namespace seed_rl::check {
namespace {

constexpr std::size_t kCapacity = 8;
constexpr std::size_t kEnvsOfCall = 4;
constexpr std::size_t kNumPeers = 2;

#define REQUIRE(condition, what)                                                  \
    do {                                                                          \
        if (!(condition)) {                                                       \
            std::fprintf(stderr, "fuzz_server: %s, line %d\n", what, __LINE__);   \
            std::abort();                                                         \
        }                                                                         \
    } while (false)

// Notes what the connection tells of its calls.
class Owner : public Connection::Owner {
public:
    struct Call {
        std::shared_ptr<Stream> stream;
        bool is_ready = false;
        bool is_bad = false;
        bool is_accepted = false;
        bool is_ended = false;
    };

    std::uint64_t add_call(const std::shared_ptr<Stream>& stream) override {
        calls[++num_calls].stream = stream;
        return num_calls;
    }
    void remove_call(std::uint64_t call) override {
        const auto found = calls.find(call);
        REQUIRE(found != calls.end(), "a call was removed twice");
        REQUIRE(!found->second.is_accepted || found->second.is_ended, "an end was not told");
        calls.erase(found);
    }
    void call_is_ready(Stream& stream, const std::string&) override {
        Call& call = calls.at(stream.call);
        REQUIRE(!call.is_ready, "a call was ready twice");
        call.is_ready = true;
    }
    void message_is_bad(Stream& stream) override {
        Call& call = calls.at(stream.call);
        REQUIRE(call.is_accepted && !call.is_bad, "a message is bad twice, or too early");
        REQUIRE(stream.bad_message.size() <= max_message_bytes, "the bad message has grown");
        call.is_bad = true;
    }
    void call_has_ended(Stream& stream, const char*) override {
        Call& call = calls.at(stream.call);
        REQUIRE(call.is_accepted && !call.is_ended, "an end was told twice");
        call.is_ended = true;
    }
    void wants(Connection&, bool, bool) override {}

    std::map<std::uint64_t, Call> calls;
    std::uint64_t num_calls = 0;
    std::size_t max_message_bytes = 0;
};

class Run {
public:
    Run(const std::uint8_t* data, std::size_t size)
        : script_(data, size),
          format_(row_format(kCapacity)),
          batcher_(format_.sizes, kCapacity, Seconds(0), [this] { is_overdue_ = true; }) {
        owner_.max_message_bytes = format_.max_message_bytes;
    }

    ~Run() {
        for (Peer& peer : peers_) lose(peer);
        REQUIRE(owner_.calls.empty(), "calls are left");
    }

    void go() {
        const std::uint8_t mode = script_.byte();
        for (Peer& peer : peers_) connect(peer, (mode & 3) != 3);
        if ((mode & 1) != 0) {
            raw(peers_[0], (mode & 4) != 0);
            return;
        }
        for (int i = 0; i < 400 && !script_.is_over(); ++i) step();
        // Whatever is complete can be taken and answered.
        for (int i = 0; i < 20; ++i) take();
    }

private:
    struct Peer {
        std::shared_ptr<Connection> connection;
        std::uint32_t next_id = 1;
        std::vector<std::uint32_t> ids;
        // What a stream was given to send and has not yet sent, by stream.
        std::map<std::uint32_t, Bytes> rest;
        bool is_lost = false;
    };

    void connect(Peer& peer, bool with_preface) {
        peer = Peer();
        peer.connection = std::make_shared<Connection>(-1, "peer", owner_, format_, batcher_);
        flush(peer);
        if (!with_preface) return;
        Bytes start;
        append(start, kPreface);
        append_settings(start, {});
        feed(peer, start);
    }

    // As the server's thread does it.
    void feed(Peer& peer, const Bytes& bytes) {
        std::size_t done = 0;
        while (done < bytes.size() && !peer.is_lost) {
            // A chunk has memory of its own, so that a read past its end is seen.
            const std::size_t size = cuts_ ? 1 + script_.below(64) : bytes.size();
            const Bytes chunk(bytes.begin() + static_cast<std::ptrdiff_t>(done),
                              bytes.begin() + static_cast<std::ptrdiff_t>(
                                                  std::min(done + size, bytes.size())));
            done += chunk.size();
            const bool is_well = peer.connection->receive(chunk.data(), chunk.size(), Clock::now());
            if (!peer.connection->flush() || !is_well) lose(peer);
        }
    }

    void flush(Peer& peer) {
        if (!peer.is_lost && !peer.connection->flush()) lose(peer);
    }

    void lose(Peer& peer) {
        if (peer.is_lost || !peer.connection) return;
        peer.is_lost = true;
        peer.connection->lose();
    }

    void raw(Peer& peer, bool accepts) {
        while (!script_.is_over()) {
            feed(peer, script_.bytes(1 + script_.byte()));
            if (accepts) decide(0, 0);
        }
        feed(peer, script_.rest());
        decide(0, 0);
        for (int i = 0; i < 3; ++i) take();
    }

    std::uint32_t choose_id(Peer& peer) {
        const std::size_t i = script_.byte();
        return peer.ids.empty() ? 1 : peer.ids[i % peer.ids.size()];
    }

    void step() {
        const std::uint8_t what = script_.byte();
        Peer& peer = peers_[what >> 7];
        Bytes out;
        switch (what & 31) {
            case 0:
            case 1:
                open(peer, kActPath);
                break;
            case 2:
                open(peer, kJoinPath);
                break;
            case 3:
            case 4:
            case 5:
                send_message(peer);
                break;
            case 6:
            case 7:
                send_rest(peer);
                break;
            case 8: {
                const std::uint32_t id = choose_id(peer);
                append_frame(out, kData, kEndStream, id, {});
                feed(peer, out);
                break;
            }
            case 9: {
                const std::uint32_t id = choose_id(peer);
                append_frame(out, kRstStream, id, script_.below(14));
                feed(peer, out);
                break;
            }
            case 10:
                feed(peer, script_.bytes(script_.byte()));
                break;
            case 11: {
                // Any bytes as DATA, padded or not.
                const std::uint32_t id = choose_id(peer);
                const std::uint8_t flags = script_.byte() & (kEndStream | kPadded);
                append_frame(out, kData, flags, id, script_.bytes(script_.byte()));
                feed(peer, out);
                break;
            }
            case 12: {
                // Any frame.
                const std::uint8_t type = script_.byte() % 12;
                const std::uint8_t flags = script_.byte();
                const std::uint32_t id = script_.flip() ? choose_id(peer) : script_.byte();
                append_frame(out, type, flags, id, script_.bytes(script_.byte()));
                feed(peer, out);
                break;
            }
            case 13: {
                const std::uint32_t id = script_.flip() ? choose_id(peer) : 0;
                append_frame(out, kWindowUpdate, id, script_.u32());
                feed(peer, out);
                break;
            }
            case 14: {
                const auto identifier = static_cast<std::uint16_t>(1 + script_.below(6));
                append_settings(out, {{identifier, script_.flip() ? script_.u32() : script_.byte()}});
                feed(peer, out);
                break;
            }
            case 15:
                append_frame(out, kPing, script_.byte() & kAck, 0, Bytes(8));
                feed(peer, out);
                break;
            case 16:
            case 17:
                decide(script_.byte(), 0);
                break;
            case 18:
                decide(script_.byte(), 1 + script_.below(3));
                break;
            case 19:
            case 20:
            case 21:
                take();
                break;
            case 22:
                reply();
                break;
            case 23:
                evict();
                break;
            case 24:
                if (!peer.is_lost) {
                    const auto now = Clock::now() + std::chrono::seconds(script_.byte());
                    if (!peer.connection->keep_alive(now, std::chrono::seconds(10))) {
                        lose(peer);
                    } else {
                        peer.connection->look_after(now, now - std::chrono::seconds(script_.byte()));
                        flush(peer);
                    }
                }
                break;
            case 25:
                if (!peer.is_lost) {
                    if (script_.below(4) == 0) peer.connection->shut_down(script_.flip());
                    flush(peer);
                }
                break;
            case 26:
                lose(peer);
                connect(peer, true);
                break;
            case 27:
                cuts_ = !cuts_;
                break;
            case 28:
                open_oddly(peer);
                break;
            case 29:
                // A window so small that answers go out in pieces.
                append_settings(out, {{4, script_.byte()}});
                feed(peer, out);
                break;
            case 30:
                for (const auto& [number, call] : owner_.calls) batcher_.silent_since(*call.stream);
                break;
            default:
                is_held_back_ = !is_held_back_;
                break;
        }
    }

    void open(Peer& peer, std::string_view path) {
        Bytes out;
        append_frame(out, kHeaders, kEndHeaders, next_id(peer), header_block(request_headers(path)));
        feed(peer, out);
    }

    std::uint32_t next_id(Peer& peer) {
        const std::uint32_t id = peer.next_id;
        peer.next_id += 2;
        peer.ids.push_back(id);
        return id;
    }

    // Headers with something wrong or rare, maybe cut into CONTINUATION.
    void open_oddly(Peer& peer) {
        Headers headers = request_headers(script_.flip() ? kActPath : "/seed_rl.Seed/Other");
        const std::uint8_t what = script_.byte();
        const Bytes some = script_.bytes(script_.below(20));
        const std::string text(some.begin(), some.end());
        if ((what & 1) != 0) headers[what >> 4 & 3].second = text;
        if ((what & 2) != 0) headers.emplace_back("grpc-timeout", text);
        if ((what & 4) != 0) {
            headers.emplace_back("grpc-timeout", std::to_string(what >> 4) + "HMSmun"[what % 6]);
        }
        if ((what & 8) != 0) headers.emplace_back(text, std::string(script_.byte() * 80, 'x'));
        if ((what & 16) != 0) headers.emplace_back("grpc-encoding", script_.flip() ? text : "gzip");
        headers.emplace_back("seed-rl-lease", text);
        headers.emplace_back("seed-rl-token", text);
        const Bytes block = header_block(headers);
        const std::size_t first = std::min<std::size_t>(script_.byte(), block.size());
        const std::uint32_t id = next_id(peer);
        Bytes out;
        append_frame(out, kHeaders, first == block.size() ? kEndHeaders : 0, id, block.data(), first);
        if (first < block.size()) {
            append_frame(out, kContinuation, kEndHeaders, id, block.data() + first,
                         block.size() - first);
        }
        feed(peer, out);
    }

    // Starts a message on a stream: a good one, or one with some bytes changed.
    void send_message(Peer& peer) {
        const std::uint32_t id = choose_id(peer);
        const std::uint8_t what = script_.byte();
        const std::size_t n = 1 + (what & 3);
        std::vector<Row> rows(n);
        for (std::size_t i = 0; i < n; ++i) {
            rows[i].env_id = static_cast<std::int32_t>(first_env_id(peer, id) + i);
            rows[i].stream = id;
            rows[i].step = num_steps_++ * ((what >> 2) & 1);
        }
        Bytes message = framed(protobuf_of(columns_of(rows)));
        if ((what & 8) != 0) {
            for (int i = 0; i < 3; ++i) message[script_.byte() % message.size()] = script_.byte();
        }
        append(peer.rest[id], message);
        if ((what & 0x30) == 0) send_rest(peer, id, peer.rest[id].size());
    }

    void send_rest(Peer& peer) {
        const std::uint32_t id = choose_id(peer);
        send_rest(peer, id, script_.byte());
    }

    void send_rest(Peer& peer, std::uint32_t id, std::size_t size) {
        Bytes& rest = peer.rest[id];
        size = std::min(size, rest.size());
        Bytes out;
        append_frame(out, kData, 0, id, rest.data(), size);
        rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(size));
        feed(peer, out);
    }

    // Calls of the two peers own different environments.
    std::size_t first_env_id(const Peer& peer, std::uint32_t id) const {
        return (&peer == &peers_[0] ? 0 : 1'000'000) + id * kEnvsOfCall;
    }

    // Decides a call that waits for it: 0 accepts or responds, 1 refuses, others do what is wrong.
    void decide(std::size_t which, std::size_t how) {
        std::vector<std::uint64_t> waiting;
        for (const auto& [number, call] : owner_.calls) {
            if (call.is_ready) waiting.push_back(number);
        }
        if (waiting.empty()) return;
        Owner::Call& call = owner_.calls.at(waiting[which % waiting.size()]);
        const std::shared_ptr<Stream> stream = call.stream;
        Peer* peer = peer_of(*stream);
        if (peer == nullptr) return;
        Connection& connection = *peer->connection;
        const bool is_act = stream->method == Stream::Method::kAct;
        const bool was_decided = stream->stage != Stream::Stage::kDecision || stream->was_accepted;
        if (how == 0 && is_act) {
            // It may end at once, and then has to tell so.
            call.is_accepted = call.is_accepted || !was_decided;
            const bool is_accepted = connection.accept(
                *stream, "lease", first_env_id(*peer, stream->id), kEnvsOfCall);
            REQUIRE(is_accepted == !was_decided, "accept() tells something else");
        } else if (how == 0) {
            connection.respond(*stream, "response");
        } else if (how == 1) {
            connection.end(*stream, kInvalidArgument, "100 % of it is bad\n", "refused");
        } else if (how == 2) {
            connection.respond(*stream, std::string(100'000, 'x'));
        } else {
            connection.end(*stream, kOk, "", "dismissed", true);
        }
        flush(*peer);
    }

    Peer* peer_of(const Stream& stream) {
        const auto connection = stream.connection.lock();
        for (Peer& peer : peers_) {
            if (peer.connection == connection && !peer.is_lost) return &peer;
        }
        return nullptr;
    }

    void evict() {
        if (!is_overdue_) return;
        is_overdue_ = false;
        for (const auto& source : batcher_.overdue()) {
            auto& stream = static_cast<Stream&>(*source);
            if (const auto connection = stream.connection.lock()) connection->evict(stream);
        }
    }

    void take() {
        if (taken_ != nullptr) reply();
        const auto taken = batcher_.take(Seconds(0));
        if (taken.outcome != Batcher::Taken::Outcome::kBatch) {
            evict();
            return;
        }
        taken_ = taken.batch;
        size_ = taken.size;
        REQUIRE(size_ > 0 && size_ <= kCapacity, "a batch of a wrong size");
        std::set<std::int32_t> ids;
        std::size_t num_restarted = 0;
        for (std::size_t i = 0; i < size_; ++i) {
            REQUIRE(ids.insert(value_at<std::int32_t>(taken_->column(kEnvId), i)).second,
                    "an env id is twice in a batch");
            REQUIRE(taken_->column(kStepType)[i] <= 3, "a bad step_type");
            const bool is_restarted = taken_->restarted()[i] != 0;
            REQUIRE(!is_restarted || taken_->column(kStepType)[i] == 0, "a bad first step_type");
            num_restarted += is_restarted;
            REQUIRE(std::isfinite(value_at<float>(taken_->column(kReward), i)), "a bad reward");
            REQUIRE(std::isfinite(value_at<float>(taken_->column(kRawReward), i)), "a bad reward");
            REQUIRE(std::isfinite(value_at<double>(taken_->column(kDouble), i)), "a bad double");
            REQUIRE((value_at<std::uint16_t>(taken_->column(kHalf), i) & 0x7C00) != 0x7C00,
                    "a bad half");
        }
        REQUIRE(num_restarted == taken.num_restarted, "a wrong num_restarted");
        if (!is_held_back_) reply();
    }

    // As Server::reply does it.
    void reply() {
        if (taken_ == nullptr) return;
        const std::vector<std::size_t> sizes = answer_sizes();
        std::vector<Bytes> columns;
        std::vector<const std::uint8_t*> starts;
        for (const std::size_t size : sizes) columns.emplace_back(size_ * size, 0xAA);
        for (const Bytes& column : columns) starts.push_back(column.data());
        std::vector<Call> calls;
        batcher_.replied(taken_->index(), calls);
        for (const Call& call : calls) {
            auto& stream = static_cast<Stream&>(*call.source);
            const auto connection = stream.connection.lock();
            if (!connection || stream.is_closed) continue;
            connection->answer(stream, starts, sizes, call.first, call.n);
            if (!connection->flush()) {
                if (Peer* peer = peer_of(stream)) lose(*peer);
            }
        }
        taken_ = nullptr;
    }

    Script script_;
    const RowFormat format_;
    Batcher batcher_;
    Owner owner_;
    Peer peers_[kNumPeers];
    bool cuts_ = false;
    bool is_overdue_ = false;
    bool is_held_back_ = false;
    Batch* taken_ = nullptr;
    std::size_t size_ = 0;
    std::uint32_t num_steps_ = 0;
};

}  // namespace
}  // namespace seed_rl::check

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    seed_rl::check::Run(data, size).go();
    return 0;
}
