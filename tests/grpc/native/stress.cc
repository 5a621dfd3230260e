// Drives a server with many clients at once, well-behaved ones and others, and checks every answer
// and every batch. Runs under sanitizers: see scripts/native_check.sh.
//
//   stress [--secs=N] [--rounds=N] [--seed=N]    servers in a row, each for so long
//   stress --connects=N                          many connections, and the memory that remains
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actor.h"
#include "directed.h"
#include "native_actor.h"
#include "wild.h"
#include "world.h"

namespace seed_rl::check {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kEnvsOfThread = 8;

struct Totals {
    std::atomic<std::uint64_t> num_good{0};  // answers of well-behaved clients
    std::atomic<std::uint64_t> num_native{0};  // of those on the native client
    std::atomic<std::uint64_t> num_wild{0};  // connections of the others
};

// Steps until the server closes, which may happen at any moment.
void step_well(World& world, Random random, std::size_t first, Totals& totals) {
    Envs envs{first, std::vector<std::uint32_t>(kEnvsOfThread)};
    try {
        RawPeer peer(random.flip() ? world.tcp() : world.unix_socket(), random);
        peer.start();
        Actor actor(peer, random, envs, 0, kEnvsOfThread);
        actor.wait_until_accepted();
        while (true) {
            if (random.one_in(20)) std::this_thread::sleep_for(milliseconds(random.between(0, 5)));
            peer.send_data(actor.id, actor.next_message());
            actor.wait_for_answer();
            ++totals.num_good;
        }
    } catch (const Gone& gone) {
        if (!world.is_closing()) fail("a good client: %s", gone.what());
    }
}

void step_natively(World& world, Random random, std::size_t first, Totals& totals) {
    Envs envs{first, std::vector<std::uint32_t>(kEnvsOfThread)};
    while (!world.is_closing()) {
        try {
            totals.num_native += NativeActor(world, random, envs).go();
        } catch (const Gone& gone) {
            if (!world.is_closing()) fail("a native client: %s", gone.what());
        }
    }
}

void go_wild(World& world, Random random, std::size_t first, Totals& totals) {
    Envs envs{first, std::vector<std::uint32_t>(kEnvsOfThread)};
    while (!world.is_closing()) {
        try {
            Wild(world, random, envs).go();
            ++totals.num_wild;
        } catch (const Gone& gone) {
            if (!world.is_closing()) fail("a wild client: %s", gone.what());
        }
    }
}

void run_server(double secs, std::uint64_t seed, Totals& totals) {
    Random random(seed);
    constexpr std::size_t kNumGood = 3;
    constexpr std::size_t kNumNative = 3;
    constexpr std::size_t kNumWild = 12;
    constexpr std::size_t kNumAll = kNumGood + kNumNative + kNumWild;
    World::Options options;
    options.seed = seed;
    options.capacity = random.between(kEnvsOfThread, 48);
    options.num_envs = kNumAll * kEnvsOfThread;
    options.num_learners = random.between(1, 3);
    options.batch_timeout = Seconds(0.001 * static_cast<double>(random.between(0, 20)));
    options.waited_for = Seconds(random.flip() ? 0.05 : 5);
    World world(options);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kNumAll; ++i) {
        const auto run = i < kNumGood                ? step_well
                         : i < kNumGood + kNumNative ? step_natively
                                                     : go_wild;
        threads.emplace_back([&, run, i] {
            run(world, Random(seed * 100 + i), i * kEnvsOfThread, totals);
        });
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(secs));
    world.close(random.flip(), Seconds(0.3 * static_cast<double>(random.between(0, 3))));
    for (std::thread& thread : threads) thread.join();
}

int run_servers(double secs, int rounds, std::uint64_t seed) {
    const auto start = Clock::now();
    Totals totals;
    const std::size_t num_files = num_open_files();
    check_deadline_of_two_waiters();
    check_garbage();
    check_slow_reader();
    check_deaf_peer();
    check_keepalive();
    for (int i = 0; i < rounds; ++i) run_server(secs, seed + static_cast<std::uint64_t>(i), totals);
    if (num_open_files() != num_files) {
        fail("%zu files are open, before there were %zu", num_open_files(), num_files);
    }
    std::printf("stress: %d servers, %llu answers to good clients and %llu to native ones, "
                "%llu wild connections, %.0f s\n",
                rounds, static_cast<unsigned long long>(totals.num_good),
                static_cast<unsigned long long>(totals.num_native),
                static_cast<unsigned long long>(totals.num_wild),
                Seconds(Clock::now() - start).count());
    if (totals.num_good == 0 || totals.num_native == 0 || totals.num_wild == 0) fail("nothing happened");
    return 0;
}

// A join, a stream, a step, and gone.
void connect_once(World& world, Random& random, Envs& envs) {
    RawPeer peer(random.flip() ? world.tcp() : world.unix_socket(), random);
    peer.start();
    const std::uint32_t join = peer.open(request_headers(kJoinPath));
    peer.send_data(join, framed(Bytes{'h', 'i'}), true);
    expect_status(peer, join, 0, "");
    Actor actor(peer, random, envs, 0, kEnvsOfThread);
    actor.wait_until_accepted();
    peer.send_data(actor.id, actor.next_message());
    actor.wait_for_answer();
    if (random.one_in(10)) {
        // Ungracefully, in the middle of a message.
        Bytes message = actor.poison_message();
        message.resize(message.size() / 2);
        peer.send_data(actor.id, message);
        peer.close(random.flip());
        return;
    }
    peer.end(actor.id);
    actor.expect_status(0, "");
}

int run_connects(std::size_t count) {
    constexpr std::size_t kWarmUp = 1000;
    constexpr std::size_t kMaxGrowthKib = 2048;
    const auto start = Clock::now();
    World::Options options;
    options.num_envs = kEnvsOfThread;
    options.num_learners = 1;
    options.sleeps = false;
    const std::size_t num_files = num_open_files();
    std::size_t before = 0;
    std::size_t after = 0;
    {
        World world(options);
        Random random(1);
        Envs envs{0, std::vector<std::uint32_t>(kEnvsOfThread)};
        for (std::size_t i = 0; i < count; ++i) {
            connect_once(world, random, envs);
            if (i + 1 == std::min(kWarmUp, count)) before = resident_kib();
        }
        after = resident_kib();
    }
    if (num_open_files() != num_files) fail("%zu files are left open", num_open_files());
    std::printf("connects: %zu, resident %zu KiB after the first %zu, %zu KiB at the end, %.0f s\n",
                count, before, std::min(kWarmUp, count), after,
                Seconds(Clock::now() - start).count());
    if (after > before + kMaxGrowthKib) fail("memory grows by %zu KiB", after - before);
    return 0;
}

bool read_option(const char* argument, const char* name, double& value) {
    const std::size_t size = std::strlen(name);
    if (std::strncmp(argument, name, size) != 0 || argument[size] != '=') return false;
    value = std::strtod(argument + size + 1, nullptr);
    return true;
}

}  // namespace
}  // namespace seed_rl::check

int main(int argc, char** argv) {
    using namespace seed_rl::check;
    double secs = 3;
    double rounds = 10;
    double seed = 1;
    double connects = 0;
    for (int i = 1; i < argc; ++i) {
        if (!read_option(argv[i], "--secs", secs) && !read_option(argv[i], "--rounds", rounds) &&
            !read_option(argv[i], "--seed", seed) && !read_option(argv[i], "--connects", connects)) {
            std::fprintf(stderr, "unknown option %s\n", argv[i]);
            return 2;
        }
    }
    try {
        if (connects > 0) return run_connects(static_cast<std::size_t>(connects));
        return run_servers(secs, static_cast<int>(rounds), static_cast<std::uint64_t>(seed));
    } catch (const std::exception& error) {
        fail("%s", error.what());
    }
}
