// Connecting to the learner's address, with a deadline for all of it.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace seed_rl {

enum class Connected { kDone, kFailed, kDeadline, kGivenUp };

// Tries every address that the name has.
//   path: of a unix socket; empty for host and port.
//   gives_up: asked at least five times a second.
//   fd: the blocking socket; belongs to the caller.
//   error: why there is none.
Connected connect_socket(const std::string& path, const std::string& host, int port,
                         std::chrono::steady_clock::time_point deadline,
                         const std::function<bool()>& gives_up, int& fd, std::string& error);

// The same, for the authority of an HTTP request.
std::string authority(const std::string& path, const std::string& host, int port);

}  // namespace seed_rl
