// A server with its learner's threads and its control thread, which check what they are given.
#pragma once

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "check.h"
#include "raw_peer.h"
#include "rows.h"
#include "server.h"

namespace seed_rl::check {

inline std::size_t num_open_files() {
    DIR* const folder = opendir("/proc/self/fd");
    std::size_t count = 0;
    while (readdir(folder) != nullptr) ++count;
    closedir(folder);
    return count;
}

inline std::uint64_t hash(const std::uint8_t* data, std::size_t size) {
    std::uint64_t value = 0xCBF29CE484222325;
    for (std::size_t i = 0; i < size; ++i) value = (value ^ data[i]) * 0x100000001B3;
    return value;
}

// The learner's words for a bad message: what tells that it was handed over as it was sent.
inline std::string words_for(const Bytes& message) {
    return "bad\n" + std::to_string(message.size()) + " " +
           std::to_string(hash(message.data(), message.size())) + " 100 %";
}

class World {
public:
    struct Options {
        std::size_t capacity = 32;
        std::size_t num_envs = 64;
        Seconds batch_timeout{0.005};
        Seconds keepalive{60};
        Seconds waited_for{0.5};
        std::size_t num_learners = 2;
        bool sleeps = true;  // now and then, learners and control take their time
        std::uint64_t seed = 1;
    };

    explicit World(const Options& options) : options_(options), envs_(options.num_envs) {
        Server::Options server;
        server.listeners = {listen_tcp(), listen_unix()};
        server.rows = row_format(options.capacity);
        max_message_bytes_ = server.rows.max_message_bytes;
        server.action_sizes = answer_sizes();
        server.capacity = options.capacity;
        server.batch_timeout = options.batch_timeout;
        server.keepalive = options.keepalive;
        server.waited_for = options.waited_for;
        server_ = std::make_unique<Server>(std::move(server));
        for (std::size_t i = 0; i < options.num_learners; ++i) {
            threads_.emplace_back([this, i] { learn(Random(options_.seed * 1000 + i)); });
        }
        threads_.emplace_back([this] { control(Random(options_.seed * 1000 + 999)); });
    }

    ~World() {
        close(false, Seconds(0));
        is_over_ = true;
        for (std::thread& thread : threads_) thread.join();
        server_.reset();
        ::unlink(unix_.path.c_str());
    }

    void close(bool finished, Seconds grace) {
        is_closing_ = true;
        server_->close(finished, grace);
    }

    // From then on, calls may end at any moment.
    bool is_closing() const { return is_closing_; }
    const Address& tcp() const { return tcp_; }
    const Address& unix_socket() const { return unix_; }
    std::size_t max_message_bytes() const { return max_message_bytes_; }
    Server& server() { return *server_; }

    std::atomic<std::uint64_t> num_rows{0};
    std::atomic<std::uint64_t> num_batches{0};
    std::atomic<std::uint64_t> num_responses{0};
    std::atomic<std::uint64_t> num_bad{0};
    std::atomic<std::uint64_t> num_ends{0};

private:
    struct Env {
        bool has_sent = false;
        std::uint32_t stream = 0;
        std::uint32_t step = 0;
    };

    int listen_tcp() {
        const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        sockaddr_in name{};
        name.sin_family = AF_INET;
        name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof name;
        if (::bind(fd, reinterpret_cast<const sockaddr*>(&name), size) < 0 ||
            ::listen(fd, 1024) < 0 ||
            ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) < 0) {
            fail("can't listen: %s", std::strerror(errno));
        }
        tcp_.port = ntohs(name.sin_port);
        return fd;
    }

    int listen_unix() {
        static std::atomic<int> count{0};
        const char* const folder = std::getenv("TMPDIR");
        unix_.path = std::string(folder == nullptr ? "/tmp" : folder) + "/seed_rl_check." +
                     std::to_string(getpid()) + "." + std::to_string(++count);
        const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        unix_.path.copy(name.sun_path, sizeof name.sun_path - 1);
        if (::bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) < 0 ||
            ::listen(fd, 1024) < 0) {
            fail("can't listen: %s", std::strerror(errno));
        }
        return fd;
    }

    void learn(Random random) {
        Batcher& batcher = server_->batcher();
        while (true) {
            const auto taken = batcher.take(Seconds(random.one_in(5) ? 0 : 0.05));
            if (taken.outcome == Batcher::Taken::Outcome::kClosed) return;
            if (taken.outcome == Batcher::Taken::Outcome::kTimeout) continue;
            look_at(taken);
            if (options_.sleeps && random.one_in(50)) {
                std::this_thread::sleep_for(std::chrono::milliseconds(random.between(0, 10)));
            }
            reply(taken);
            if (random.one_in(10)) {
                try {
                    server_->reply(taken.batch->index(), {});
                    fail("a batch could be replied to twice");
                } catch (const std::logic_error&) {
                }
            }
        }
    }

    void look_at(const Batcher::Taken& taken) {
        Batch& batch = *taken.batch;
        if (taken.size == 0 || taken.size > options_.capacity) fail("a batch of %zu", taken.size);
        std::unordered_set<std::int32_t> seen;
        std::size_t num_restarted = 0;
        const std::lock_guard lock(envs_mutex_);
        for (std::size_t i = 0; i < taken.size; ++i) {
            Row row;
            const char* const wrong =
                read_row([&](std::size_t field) { return batch.column(field); }, i, row);
            if (wrong != nullptr) {
                fail("row %zu of %zu, environment %d, stream %u, step %u: %s", i, taken.size,
                     row.env_id, row.stream, row.step, wrong);
            }
            if (row.env_id < 0 || static_cast<std::size_t>(row.env_id) >= envs_.size()) {
                fail("environment %d", row.env_id);
            }
            if (!seen.insert(row.env_id).second) fail("environment %d twice in a batch", row.env_id);
            if ((batch.restarted()[i] != 0) != (row.step == 0)) {
                fail("environment %d, step %u: restarted is %d", row.env_id, row.step,
                     batch.restarted()[i]);
            }
            num_restarted += row.step == 0;
            Env& env = envs_[static_cast<std::size_t>(row.env_id)];
            if (!env.has_sent || row.stream > env.stream) {
                if (row.step != 0) fail("environment %d starts at step %u", row.env_id, row.step);
            } else if (row.stream == env.stream) {
                if (row.step != env.step + 1) {
                    fail("environment %d: step %u after %u", row.env_id, row.step, env.step);
                }
            } else if (options_.num_learners == 1) {
                fail("environment %d: stream %u after %u", row.env_id, row.stream, env.stream);
            } else {
                continue;  // the other learner looked at the later batch first
            }
            env = {true, row.stream, row.step};
        }
        if (num_restarted != taken.num_restarted) fail("num_restarted is %zu", taken.num_restarted);
        num_rows += taken.size;
        ++num_batches;
    }

    void reply(const Batcher::Taken& taken) {
        Bytes answers, ids, bytes;
        for (std::size_t i = 0; i < taken.size; ++i) {
            Row row;
            read_row([&](std::size_t field) { return taken.batch->column(field); }, i, row);
            append_value(answers, row.answer());
            append_value(ids, row.env_id);
            bytes.push_back(row.byte(99));
        }
        server_->reply(taken.batch->index(), {answers.data(), ids.data(), bytes.data()});
    }

    void control(Random random) {
        std::unordered_set<std::uint64_t> accepted;
        while (true) {
            Server::Event event{};
            if (!server_->next_event(Seconds(0.02), event)) {
                if (!is_over_) continue;
                if (!accepted.empty()) fail("the end of %zu calls was not told", accepted.size());
                return;
            }
            if (options_.sleeps && random.one_in(100)) {
                std::this_thread::sleep_for(std::chrono::milliseconds(random.between(0, 20)));
                server_->silences();
                if (server_->accept(1'000'000'000, "nobody", 0, 1)) fail("accepted nobody");
            }
            switch (event.kind) {
                case Server::Event::Kind::kJoin: {
                    const std::string request(event.message.begin(), event.message.end());
                    if (request.compare(0, 6, "refuse") == 0) {
                        server_->refuse(event.call, 9, request);
                    } else {
                        server_->respond(event.call, "you said " + request);
                        ++num_responses;
                    }
                    break;
                }
                case Server::Event::Kind::kAct: {
                    // "how,first,count"
                    unsigned first = 0;
                    unsigned count = 0;
                    char how = 0;
                    if (std::sscanf(event.lease.c_str(), "%c,%u,%u", &how, &first, &count) != 3) {
                        fail("saw lease %s", event.lease.c_str());
                    }
                    if (how == 'r') {
                        server_->refuse(event.call, 5, "no such lease");
                    } else {
                        if (server_->accept(event.call, event.lease, first, count)) {
                            accepted.insert(event.call);
                        }
                    }
                    break;
                }
                case Server::Event::Kind::kBad:
                    if (accepted.count(event.call) == 0) fail("a bad message of no call");
                    ++num_bad;
                    server_->refuse(event.call, kInvalidArgument, words_for(event.message));
                    break;
                case Server::Event::Kind::kEnd:
                    if (accepted.erase(event.call) == 0) fail("the end of no call");
                    ++num_ends;
                    break;
            }
        }
    }

    const Options options_;
    std::size_t max_message_bytes_ = 0;
    Address tcp_, unix_;
    std::unique_ptr<Server> server_;
    std::atomic<bool> is_closing_{false};
    std::atomic<bool> is_over_{false};
    std::mutex envs_mutex_;
    std::vector<Env> envs_;
    std::vector<std::thread> threads_;
};

}  // namespace seed_rl::check
