// One Act call of a RawPeer: makes messages, and checks their answers.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "raw_peer.h"
#include "rows.h"

namespace seed_rl::check {

// The environments of one thread, and how many streams each has had.
struct Envs {
    std::size_t first;
    std::vector<std::uint32_t> num_streams;
};

// How a call ended, in words.
inline std::string end_of(RawPeer& peer, std::uint32_t id) {
    return "reset " + std::to_string(peer.stream(id).reset) + ", grpc-status " +
           peer.header(id, "grpc-status") + ", " + percent_decode(peer.header(id, "grpc-message"));
}

// Waits for the end of a call. Throws Gone where it ends otherwise: the server may be closing.
inline void expect_status(RawPeer& peer, std::uint32_t id, int code, const std::string& details) {
    peer.wait("a status", [&] { return peer.stream(id).is_over; });
    if (peer.header(id, "grpc-status") != std::to_string(code) ||
        percent_decode(peer.header(id, "grpc-message")) != details) {
        throw Gone(end_of(peer, id) + "; wanted status " + std::to_string(code) + ", " + details);
    }
}

// The rows that a stream sends, and the answers that it has to get.
class Steps {
public:
    Steps(Random& random, Envs& envs, std::size_t first, std::size_t count, char how)
        : random_(random) {
        const std::size_t first_env_id = envs.first + first;
        for (std::size_t i = 0; i < count; ++i) {
            Row row;
            row.env_id = static_cast<std::int32_t>(first_env_id + i);
            row.stream = ++envs.num_streams[first + i];
            rows_.push_back(row);
        }
        lease_ = std::string(1, how) + "," + std::to_string(first_env_id) + "," +
                 std::to_string(count);
    }

    const std::string& lease() const { return lease_; }
    const std::vector<Row>& rows() const { return rows_; }

    // The columns of the next step of some of the environments.
    Bytes next() {
        std::vector<std::size_t> chosen;
        for (std::size_t i = 0; i < rows_.size(); ++i) {
            if (!random_.one_in(4)) chosen.push_back(i);
        }
        if (chosen.empty()) chosen.push_back(random_.between(0, rows_.size() - 1));
        for (std::size_t i = chosen.size() - 1; i > 0; --i) {
            std::swap(chosen[i], chosen[random_.between(0, i)]);
        }
        std::vector<Row> sent;
        for (const std::size_t i : chosen) sent.push_back(rows_[i]);
        expected_.push_back(sent);
        for (const std::size_t i : chosen) ++rows_[i].step;
        return columns_of(sent);
    }

    // Looks at the answer to the oldest step that has none yet.
    void check_answer(const Bytes& message) {
        const std::vector<Row> rows = expected_.front();
        expected_.pop_front();
        Bytes answers, ids, bytes;
        for (const Row& row : rows) {
            append_value(answers, row.answer());
            append_value(ids, row.env_id);
            bytes.push_back(row.byte(99));
        }
        append(answers, ids);
        append(answers, bytes);
        if (message != protobuf_of(answers)) {
            fail("environment %d, stream %u, step %u of %zu rows: a wrong answer of %zu bytes",
                 rows[0].env_id, rows[0].stream, rows[0].step, rows.size(), message.size());
        }
    }

private:
    Random& random_;
    std::string lease_;
    std::vector<Row> rows_;  // the next of each environment
    std::deque<std::vector<Row>> expected_;
};

class Actor {
public:
    // Of the environments, numbers first..first+count.
    Actor(RawPeer& peer, Random& random, Envs& envs, std::size_t first, std::size_t count,
          const Headers& more_headers = {}, char how = 'a')
        : peer_(peer), steps_(random, envs, first, count, how) {
        Headers headers = request_headers(kActPath);
        headers.emplace_back("seed-rl-lease", steps_.lease());
        headers.insert(headers.end(), more_headers.begin(), more_headers.end());
        id = peer_.open(headers);
    }

    void wait_until_accepted() {
        peer_.wait("headers", [&] { return peer_.stream(id).has_headers; });
        if (peer_.stream(id).is_over) throw Gone("refused");
        if (peer_.header(id, "seed-rl-lease") != steps_.lease()) fail("a wrong lease");
    }

    // A good message, gRPC's prefix included.
    Bytes next_message() { return framed(protobuf_of(steps_.next())); }

    // Rows that must not arrive, good otherwise.
    std::vector<Row> poison(std::size_t count) {
        std::vector<Row> rows = steps_.rows();
        rows.resize(std::min(count, rows.size()));
        for (Row& row : rows) row.is_poison = true;
        return rows;
    }
    Bytes poison_message() { return framed(protobuf_of(columns_of(poison(steps_.rows().size())))); }

    void wait_for_answer() {
        Bytes message;
        peer_.wait("an answer", [&] {
            if (peer_.next_message(id, message)) return true;
            if (peer_.stream(id).is_over) throw Gone("the stream ended before an answer: " + end());
            return false;
        });
        steps_.check_answer(message);
    }

    std::string end() { return end_of(peer_, id); }
    void expect_status(int code, const std::string& details) {
        check::expect_status(peer_, id, code, details);
    }

    std::uint32_t id = 0;

private:
    RawPeer& peer_;
    Steps steps_;
};

}  // namespace seed_rl::check
