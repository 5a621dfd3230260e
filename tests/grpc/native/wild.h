// What actors must not do, or hardly ever do. Each expects what it has coming.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "actor.h"
#include "world.h"

namespace seed_rl::check {

class Wild {
public:
    Wild(World& world, Random& random, Envs& envs) : world_(world), random_(random), envs_(envs) {}

    // Opens a connection, and does a few things on it.
    void go() {
        const bool is_tcp = random_.flip();
        RawPeer peer(is_tcp ? world_.tcp() : world_.unix_socket(), random_);
        peer.chops = random_.one_in(4);
        if (random_.one_in(12)) {
            silent_start(peer);
            return;
        }
        // With a small window, answers go out in pieces.
        peer.start(random_.one_in(4) ? random_.between(1, 300) : 1 << 24);
        for (std::size_t i = random_.between(1, 4); i > 0; --i) {
            if (random_.one_in(4)) {
                go_badly(peer);
                return;
            }
            go_well(peer);
        }
        peer.close(random_.flip());
    }

private:
    std::size_t some() const { return envs_.num_streams.size(); }

    // The connection is good afterwards.
    void go_well(RawPeer& peer) {
        switch (random_.between(0, 14)) {
            case 0: return steps(peer);
            case 1: return bad_rows(peer);
            case 2: return bad_framing(peer);
            case 3: return wrong_prefix(peer);
            case 4: return slowly(peer);
            case 5: return reset_in_message(peer);
            case 6: return half_close_early(peer);
            case 7: return half_close_in_message(peer);
            case 8: return pipelined(peer);
            case 9: return deadline(peer);
            case 10: return join(peer);
            case 11: return strange_request(peer);
            case 12: return many_streams(peer);
            case 13: return refused(peer);
            default: return reset_whole_message(peer);
        }
    }

    // It is not.
    void go_badly(RawPeer& peer) {
        switch (random_.between(0, 4)) {
            case 0: return die_in_message(peer);
            case 1: return die_before_the_answer(peer);
            case 2: return never_read(peer);
            case 3: return garbage(peer);
            default: return goaway(peer);
        }
    }

    void steps(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        actor.wait_until_accepted();
        for (std::size_t i = random_.between(0, 10); i > 0; --i) {
            peer.send_data(actor.id, actor.next_message());
            actor.wait_for_answer();
        }
        peer.end(actor.id);
        actor.expect_status(0, "");
    }

    // Steps, then a bad message, and what the learner says of it.
    void one_bad(RawPeer& peer, Actor& actor, const Bytes& message) {
        peer.send_data(actor.id, framed(message), random_.one_in(4));
        actor.expect_status(kInvalidArgument, words_for(message));
    }

    void bad_rows(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        const bool has_begun = random_.flip();
        if (has_begun) {
            for (int i = 0; i < 3; ++i) {
                peer.send_data(actor.id, actor.next_message());
                actor.wait_for_answer();
            }
        }
        std::vector<Row> rows = actor.poison(random_.between(1, some()));
        const std::size_t which = random_.between(0, rows.size() - 1);
        std::size_t what = random_.between(0, 5);
        if (what == 1 && rows.size() == 1) what = 0;
        if (what == 0) rows[which].env_id += random_.flip() ? 1000 : -1'000'000;
        if (what == 1) rows[which].env_id = rows[(which + 1) % rows.size()].env_id;
        Bytes columns = columns_of(rows);
        const std::size_t n = rows.size();
        static const std::uint32_t kBad[] = {0x7FC00000, 0xFFC00001, 0x7F800000, 0xFF800000};
        const std::uint8_t nan_bytes[] = {0, 0, 0, 0, 0, 0, 0xF0, 0x7F};
        if (what == 2) columns[4 * n + which] = random_.between(4, 255);
        if (what == 3) {
            std::memcpy(&columns[(random_.flip() ? 5 : 9) * n + which * 4],
                        &kBad[random_.between(0, 3)], 4);
        }
        if (what == 4) std::memcpy(&columns[21 * n + which * 8], nan_bytes, 8);
        if (what == 5) columns[29 * n + which * 2 + 1] |= 0x7C;
        one_bad(peer, actor, protobuf_of(columns));
    }

    void bad_framing(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        const Bytes columns = columns_of(actor.poison(some()));
        Bytes message = protobuf_of(columns);
        switch (random_.between(0, 7)) {
            case 0: message.clear(); break;
            case 1: message[0] = 0x12; break;
            case 2: message.pop_back(); break;
            case 3: message.push_back(0); break;
            case 4: message = {kColumnsTag, 0}; break;
            case 5: message = protobuf_of(Bytes(row_format(1).row_bytes * (some() + 1))); break;
            case 6:
                message = Bytes(random_.between(2, 14), 0xFF);
                message[0] = kColumnsTag;
                break;
            default: message = {kColumnsTag}; break;
        }
        one_bad(peer, actor, message);
    }

    void wrong_prefix(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        const std::size_t limit = world_.max_message_bytes();
        if (random_.flip()) {
            peer.send_data(actor.id, framed(Bytes(10), 1));
            actor.expect_status(kInternal, "Compression bit set but no encoding configured");
        } else {
            const std::size_t size = random_.flip() ? limit + 1 : 0xFFFFFFFF;
            Bytes prefix{0};
            append_u32(prefix, static_cast<std::uint32_t>(size));
            peer.send_data(actor.id, prefix);
            actor.expect_status(kResourceExhausted, "SERVER: Received message larger than max (" +
                                                        std::to_string(size) + " vs. " +
                                                        std::to_string(limit) + ")");
        }
    }

    // So slowly that the batch goes on without it.
    void slowly(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        for (int i = 0; i < 2; ++i) {
            peer.send_data(actor.id, actor.next_message(), false,
                           std::chrono::microseconds(random_.between(100, 10'000)));
            actor.wait_for_answer();
        }
        if (random_.one_in(3)) {
            std::vector<Row> rows = actor.poison(some());
            rows.back().env_id = -1;
            const Bytes message = protobuf_of(columns_of(rows));
            peer.send_data(actor.id, framed(message), false, std::chrono::milliseconds(10));
            actor.expect_status(kInvalidArgument, words_for(message));
        } else {
            peer.end(actor.id);
            actor.expect_status(0, "");
        }
    }

    void send_part(RawPeer& peer, Actor& actor) {
        Bytes message = actor.poison_message();
        message.resize(random_.between(1, message.size() - 1));
        peer.send_data(actor.id, message);
        if (random_.flip()) pause(20);
    }

    void reset_in_message(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        if (random_.flip()) actor.wait_until_accepted();
        send_part(peer, actor);
        peer.reset(actor.id, random_.between(0, 12));
    }

    void reset_whole_message(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        actor.wait_until_accepted();
        peer.send_data(actor.id, actor.next_message());
        if (random_.flip()) pause(5);
        peer.reset(actor.id, 8);
        wait_until_read(peer);
    }

    // So that the next stream's rows come after those of this one.
    void wait_until_read(RawPeer& peer) {
        const std::size_t before = peer.num_pongs();
        Bytes ping;
        append_frame(ping, kPing, 0, 0, Bytes(8));
        peer.send(ping);
        peer.wait("a pong", [&] { return peer.num_pongs() > before; });
    }

    void half_close_early(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        peer.send_data(actor.id, actor.next_message(), true);
        actor.wait_for_answer();
        actor.expect_status(0, "");
    }

    void half_close_in_message(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        send_part(peer, actor);
        peer.end(actor.id);
        actor.expect_status(kOk, "");
    }

    void pipelined(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        const std::size_t count = random_.between(2, 30);
        Bytes all;
        for (std::size_t i = 0; i < count; ++i) append(all, actor.next_message());
        const bool ends = random_.flip();
        peer.send_data(actor.id, all, ends);
        for (std::size_t i = 0; i < count; ++i) actor.wait_for_answer();
        if (!ends) peer.end(actor.id);
        actor.expect_status(0, "");
    }

    void deadline(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some(),
                    {{"grpc-timeout", std::to_string(random_.between(1, 100)) + "m"}});
        if (random_.flip()) {
            Bytes message = actor.poison_message();
            message.resize(message.size() / 2);
            peer.send_data(actor.id, message);
        }
        actor.expect_status(kDeadlineExceeded, "Deadline Exceeded");
    }

    void join(RawPeer& peer) {
        const std::string request = std::string(random_.flip() ? "refuse \xC3\xA9%\n" : "hello") +
                                    std::string(random_.one_in(3) ? 100 : 0, 'x');
        const std::uint32_t id = peer.open(request_headers(kJoinPath));
        peer.send_data(id, framed(Bytes(request.begin(), request.end())), true);
        if (request[0] == 'r') {
            expect_status(peer, id, 9, request);
            return;
        }
        expect_status(peer, id, 0, "");
        Bytes answer;
        const std::string wanted = "you said " + request;
        if (!peer.next_message(id, answer) || answer != Bytes(wanted.begin(), wanted.end())) {
            fail("Join was answered with %zu bytes", answer.size());
        }
    }

    void strange_request(RawPeer& peer) {
        Headers headers = request_headers(kActPath);
        switch (random_.between(0, 5)) {
            case 5:
                headers.emplace_back("grpc-encoding", "gzip");
                expect_status(peer, peer.open(headers, random_.flip()), kUnimplemented,
                              "Compression algorithm 'gzip' is disabled.");
                break;
            case 0:
                headers[2].second = "/seed_rl.Seed/Nothing";
                expect_status(peer, peer.open(headers, random_.flip()), kUnimplemented,
                              "Method not found!");
                break;
            case 1:
                headers[5].second = "text/html";
                expect_http(peer, peer.open(headers, random_.flip()), "415");
                break;
            case 2:
                headers[0].second = "GET";
                expect_http(peer, peer.open(headers, random_.flip()), "405");
                break;
            case 3:
                headers.emplace_back("x", std::string(20'000, 'x'));
                open_large(peer, headers);
                break;
            default:
                headers[2].second = kJoinPath;
                expect_status(peer, peer.open(headers, true), kInternal, "the request is missing");
                break;
        }
    }

    void open_large(RawPeer& peer, const Headers& headers) {
        // Larger than a frame, so that CONTINUATION is a must.
        const std::uint32_t id = peer.open_in_pieces(headers);
        std::size_t size = 0;
        for (const auto& [name, value] : headers) size += name.size() + value.size() + 32;
        expect_status(peer, id, kResourceExhausted,
                      "received metadata size exceeds hard limit (value length " +
                          std::to_string(size) + " vs. 16384)");
    }

    void expect_http(RawPeer& peer, std::uint32_t id, const std::string& status) {
        peer.wait("an HTTP status", [&] { return peer.stream(id).is_over; });
        if (peer.header(id, ":status") != status) {
            throw Gone("saw HTTP status " + peer.header(id, ":status") + ", wanted " + status);
        }
    }

    // One stream for each environment.
    void many_streams(RawPeer& peer) {
        std::vector<Actor> actors;
        for (std::size_t i = 0; i < some(); ++i) actors.emplace_back(peer, random_, envs_, i, 1);
        for (int round = 0; round < 3; ++round) {
            for (Actor& actor : actors) peer.send_data(actor.id, actor.next_message(), round == 2);
            for (Actor& actor : actors) actor.wait_for_answer();
        }
        for (Actor& actor : actors) actor.expect_status(0, "");
    }

    void refused(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some(), {}, 'r');
        if (random_.flip()) peer.send_data(actor.id, actor.poison_message());
        actor.expect_status(5, "no such lease");
    }

    void die_in_message(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        if (random_.flip()) actor.wait_until_accepted();
        if (random_.flip()) {
            send_part(peer, actor);
        } else {
            // Within a frame.
            const Bytes message = actor.poison_message();
            Bytes frame;
            append_frame(frame, kData, 0, actor.id, message);
            frame.resize(random_.between(1, frame.size() - 1));
            peer.send(frame);
        }
        leave(peer);
    }

    void die_before_the_answer(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        actor.wait_until_accepted();
        peer.send_data(actor.id, actor.next_message());
        if (random_.flip()) pause(20);
        leave(peer);
        // What it has sent may still be on its way when this thread's next stream sends.
        pause(50);
    }

    // In one of the ways in which processes and machines go.
    void leave(RawPeer& peer) {
        switch (random_.between(0, 2)) {
            case 0: peer.close(false); break;
            case 1: peer.close(true); break;
            default:
                ::shutdown(peer.fd(), SHUT_WR);
                peer.wait_for_end("the end of the connection");
                break;
        }
    }

    void never_read(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        actor.wait_until_accepted();
        Bytes all;
        for (std::size_t i = 0; i < 500; ++i) {
            append_frame(all, kPing, 0, 0, Bytes(8));
            if (i % 10 == 0) append_frame(all, kData, 0, actor.id, actor.next_message());
        }
        peer.send_blindly(all);
        pause(100);
        peer.close(random_.flip());
        pause(50);
    }

    void garbage(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        if (random_.flip()) actor.wait_until_accepted();
        if (random_.flip()) send_part(peer, actor);
        Bytes bytes;
        if (random_.flip()) {
            // DATA without a stream is an error of the connection.
            append_frame(bytes, kData, 0, 0, Bytes(10));
        } else {
            // A frame that is too large.
            bytes = {0xFF, 0xFF, 0xFF, kData, 0, 0, 0, 0, static_cast<std::uint8_t>(actor.id)};
        }
        peer.send(bytes);
        peer.wait_for_end("the end of a connection that sent garbage");
    }

    void goaway(RawPeer& peer) {
        Actor actor(peer, random_, envs_, 0, some());
        Bytes bytes;
        append_frame(bytes, kGoaway, 0, 0, Bytes(8));
        peer.send_data(actor.id, actor.next_message());
        peer.send(bytes);
        actor.wait_for_answer();
        peer.end(actor.id);
        actor.expect_status(0, "");
    }

    void silent_start(RawPeer& peer) {
        Bytes start;
        append(start, random_.flip() ? kPreface : "GET / HTTP/1.1\r\n\r\n");
        start.resize(random_.between(0, start.size()));
        peer.send(start);
        pause(10);
        leave(peer);
    }

    void pause(std::size_t max_ms) {
        std::this_thread::sleep_for(std::chrono::milliseconds(random_.between(0, max_ms)));
    }

    World& world_;
    Random& random_;
    Envs& envs_;
};

}  // namespace seed_rl::check
