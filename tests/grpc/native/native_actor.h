// An actor on the native client, which is closed and left in all ways.
#pragma once

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "actor.h"
#include "client.h"
#include "world.h"

namespace seed_rl::check {

class NativeActor {
public:
    NativeActor(World& world, Random& random, Envs& envs)
        : world_(world), random_(random), envs_(envs) {}

    // A client's life. Returns the number of answers. Throws Gone where the server ends it.
    std::size_t go() {
        Client client(random_.flip() ? world_.unix_socket().path : "", "127.0.0.1",
                      world_.tcp().port, 60);
        std::size_t num_answers = 0;
        for (std::size_t i = random_.between(1, 3); i > 0; --i) {
            join(client);
            try {
                act(client, num_answers);
            } catch (const Closed&) {
                pause(50);  // what it sent may still be read
                return num_answers;
            }
        }
        if (random_.flip()) client.close();
        return num_answers;
    }

private:
    struct Closed {};

    static constexpr double kPatience = 90;
    static constexpr std::size_t kMaxAnswerBytes = 1000;

    static bool never() { return false; }

    void join(Client& client) {
        std::vector<std::uint8_t> answer;
        const bool is_refused = random_.one_in(5);
        const std::string request = is_refused ? "refuse \xC3\xA9%\n" : "hello";
        const auto outcome = client.unary("/seed_rl.Seed/Join", {{"seed-rl-token", "t"}}, request,
                                          kPatience, never, answer);
        const std::string wanted = "you said " + request;
        if (is_refused) {
            const Status status = client.status();
            if (outcome != Client::Outcome::kEnded || status.code != 9 || status.details != request) {
                throw Gone("Join: " + status.details);
            }
        } else if (outcome != Client::Outcome::kDone) {
            throw Gone("Join: " + client.status().details);
        } else if (answer != Bytes(wanted.begin(), wanted.end())) {
            fail("Join was answered with %zu bytes", answer.size());
        }
    }

    void act(Client& client, std::size_t& num_answers) {
        Steps steps(random_, envs_, 0, envs_.num_streams.size(), 'a');
        Metadata headers;
        if (client.open("/seed_rl.Seed/Act", {{"seed-rl-lease", steps.lease()}}, kPatience, never,
                        headers) != Client::Outcome::kDone) {
            throw Gone("Act: " + client.status().details);
        }
        std::vector<std::uint8_t> answer;
        const std::size_t count = random_.between(0, 300);
        for (std::size_t i = 0; i < count; ++i) {
            send(client, steps.next());
            if (random_.one_in(20)) pause(random_.between(0, 5));
            if (client.receive(kPatience, never, answer) != Client::Outcome::kDone) {
                throw Gone("an answer: " + client.status().details);
            }
            steps.check_answer(answer);
            ++num_answers;
        }
        end(client, steps);
    }

    void send(Client& client, const Bytes& columns) {
        // In pieces, each with memory that is gone afterwards.
        const std::size_t half = random_.between(0, columns.size());
        const auto middle = columns.begin() + static_cast<std::ptrdiff_t>(half);
        const Bytes first(columns.begin(), middle);
        const Bytes second(middle, columns.end());
        client.send({{first.data(), first.size()}, {second.data(), second.size()}}, kMaxAnswerBytes,
                    random_.flip());
    }

    void end(Client& client, Steps& steps) {
        std::vector<std::uint8_t> answer;
        switch (random_.between(0, 4)) {
            case 0: {
                // Closed by another thread while it waits, or shortly before or after.
                send(client, steps.next());
                std::thread closer([&] {
                    std::this_thread::sleep_for(std::chrono::microseconds(500));
                    client.close();
                });
                client.receive(kPatience, never, answer);
                closer.join();
                send(client, steps.next());
                throw Closed();
            }
            case 1:
                send(client, steps.next());
                if (client.receive(0, never, answer) == Client::Outcome::kDone) break;
                // The stream is over; what it sent may still be read.
                pause(50);
                return;
            case 2: {
                const std::string bad = "not a message";
                client.send_message(bad.data(), bad.size(), kMaxAnswerBytes, random_.flip());
                if (client.receive(kPatience, never, answer) != Client::Outcome::kEnded ||
                    client.status().details != words_for(Bytes(bad.begin(), bad.end()))) {
                    throw Gone("a bad message: " + client.status().details);
                }
                return;
            }
            default:
                client.close();
                throw Closed();
        }
        client.close();
        throw Closed();
    }

    void pause(std::size_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

    World& world_;
    Random& random_;
    Envs& envs_;
};

}  // namespace seed_rl::check
