// Single situations that chance seldom brings about, or in which the server's patience counts.
#pragma once

#include <malloc.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actor.h"
#include "world.h"

namespace seed_rl::check {

inline std::size_t resident_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.compare(0, 6, "VmRSS:") == 0) return std::strtoul(line.c_str() + 6, nullptr, 10);
    }
    return 0;
}

// Of sanitizers, which have a heap of their own.
extern "C" __attribute__((weak)) std::size_t __sanitizer_get_current_allocated_bytes();

// What was allocated and not freed.
inline std::size_t heap_kib() {
    if (__sanitizer_get_current_allocated_bytes != nullptr) {
        return __sanitizer_get_current_allocated_bytes() >> 10;
    }
    const struct mallinfo2 info = mallinfo2();
    return (info.uordblks + info.hblkhd) >> 10;
}

inline double secs_since(Clock::time_point start) { return Seconds(Clock::now() - start).count(); }

// A peer that breaks HTTP/2's rules and stays is shown the door: else its environments would be
// leased for as long as it likes.
inline void check_garbage() {
    World world({});
    Random random(1);
    for (const bool has_stream : {false, true}) {
        Envs envs{0, std::vector<std::uint32_t>(8)};
        RawPeer peer(world.tcp(), random);
        peer.start();
        std::unique_ptr<Actor> actor;
        if (has_stream) {
            actor = std::make_unique<Actor>(peer, random, envs, 0, 8);
            actor->wait_until_accepted();
        }
        Bytes bytes;
        append_frame(bytes, kData, 0, 0, Bytes(10));
        const auto start = Clock::now();
        peer.send(bytes);
        peer.wait_for_end("the end of a connection that sent garbage");
        if (!peer.has_goaway()) fail("garbage was not told of");
        if (secs_since(start) > 20) fail("garbage was borne for %.0f s", secs_since(start));
    }
}

// Who reads slowly, but always, must not make the server's memory grow with what it was sent.
inline void check_slow_reader() {
    World::Options options;
    options.sleeps = false;
    World world(options);
    Random random(1);
    RawPeer peer(world.unix_socket(), random);
    peer.start();
    // More than sockets hold waits in the server, from here to the end.
    constexpr std::size_t kBacklog = 600;
    constexpr std::size_t kNumCalls = 20'000;
    constexpr std::size_t kMaxGrowthKib = 8 << 10;
    std::size_t before = 0;
    std::deque<std::uint32_t> unread;
    for (std::size_t i = 0; i < kNumCalls; ++i) {
        unread.push_back(peer.open(request_headers(kJoinPath)));
        peer.send_data(unread.back(), framed(Bytes(1000, 'x')), true);
        if (unread.size() > kBacklog) {
            while (world.num_responses <= i) std::this_thread::yield();
            expect_status(peer, unread.front(), 0, "");
            peer.forget(unread.front());
            unread.pop_front();
        }
        if (i == kNumCalls / 10) before = heap_kib();
    }
    const std::size_t after = heap_kib();
    if (after > before + kMaxGrowthKib) fail("a slow reader costs %zu KiB", after - before);
}

// Who reads nothing, and asks for ever more, must not make the server's memory grow.
inline void check_deaf_peer() {
    World world({});
    Random random(1);
    RawPeer peer(world.unix_socket(), random);
    peer.start();
    constexpr std::size_t kNumCalls = 400'000;
    constexpr std::size_t kMaxGrowthKib = 40 << 10;
    const Bytes block = header_block(request_headers("/seed_rl.Seed/Nothing"));
    const std::size_t before = heap_kib();
    bool is_taken = true;
    for (std::size_t i = 0; i < kNumCalls && is_taken; i += 100) {
        Bytes calls;
        for (std::size_t j = i; j < i + 100; ++j) {
            append_frame(calls, kHeaders, kEndHeaders, static_cast<std::uint32_t>(2 * j + 1), block);
        }
        is_taken = peer.send_blindly(calls);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const std::size_t after = heap_kib();
    if (after > before + kMaxGrowthKib) fail("a deaf peer costs %zu KiB", after - before);
}

// Who doesn't answer pings is gone; who answers them may be silent for as long as it likes.
inline void check_keepalive() {
    World::Options options;
    options.keepalive = Seconds(2);
    World world(options);
    Random random(1);
    Envs dead_envs{0, std::vector<std::uint32_t>(8)};
    Envs live_envs{8, std::vector<std::uint32_t>(8)};
    RawPeer dead(world.tcp(), random);
    RawPeer live(world.tcp(), random);
    dead.answers_pings = false;
    dead.start();
    live.start();
    Actor dead_actor(dead, random, dead_envs, 0, 8);
    Actor live_actor(live, random, live_envs, 0, 8);
    dead_actor.wait_until_accepted();
    live_actor.wait_until_accepted();
    const auto until = Clock::now() + RawPeer::kPatience;
    while (!dead.is_eof()) {
        dead.pump(10);
        live.pump(10);
        if (Clock::now() > until) fail("a peer that answers no pings is kept");
    }
    live.send_data(live_actor.id, live_actor.next_message());
    live_actor.wait_for_answer();
    // Another thread takes the events.
    while (world.num_ends == 0) {
        if (Clock::now() > until) fail("the end of a lost stream was not told");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// However the learner's threads take turns in waiting, a batch is handed out at its deadline.
inline void check_deadline_of_two_waiters() {
    class Fake : public Source {};

    constexpr double kLong = 30;
    for (int i = 0; i < 20; ++i) {
        Batcher batcher({4}, 8, Seconds(0.1), [] {});
        const auto first = std::make_shared<Fake>();
        const auto second = std::make_shared<Fake>();
        batcher.open(*first);
        batcher.open(*second);
        // One of them stops waiting after it was woken for the batch's first rows.
        std::vector<std::thread> threads;
        std::atomic<int> num_taken{0};
        for (const double patience : {0.06, kLong}) {
            threads.emplace_back([&, patience] {
                const auto taken = batcher.take(Seconds(patience));
                num_taken += taken.outcome == Batcher::Taken::Outcome::kBatch;
            });
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        batcher.reserve(first, 1);
        batcher.complete(*first);
        const auto start = Clock::now();
        while (num_taken == 0 && secs_since(start) < 10) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        const double secs = secs_since(start);
        batcher.close();
        for (std::thread& thread : threads) thread.join();
        if (secs >= 10) fail("a batch was late by 10 s");
    }
}

}  // namespace seed_rl::check
