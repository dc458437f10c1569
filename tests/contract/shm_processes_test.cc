// The shared-memory plane among processes: one is killed in the middle of operations, and /dev/shm is too small.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "plane/plane_choice.h"
#include "plane/point_to_point.h"
#include "plane/shm/shm.h"
#include "plane/shm/two_level.h"
#include "process_transport.h"
#include "transport/loopback.h"
#include "waiting.h"

namespace sirtaki::contract {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLimit = 120s;  // generous: the thread sanitizer, and more processes than cores
constexpr int kAbortedAsItShould = 7;

// Checks in a child are REQUIREs: a failed one ends the child with exit code 1.
pid_t in_process(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // so that a test that fails leaves nothing behind
  int code = 1;
  try {
    code = body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  } catch (...) {  // a REQUIRE, which has said why
  }
  std::fflush(nullptr);
  _exit(code);
}

int exit_code_within_limit(pid_t child) {
  const auto end = Clock::now() + kLimit;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (Clock::now() > end) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      FAIL("a rank did not end");
    }
    std::this_thread::sleep_for(5ms);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::set<std::string> segments() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("sirtaki-")) names.insert(name);
  }
  return names;
}

// Other jobs may have one for a moment, while they start.
void check_nothing_is_left(const std::set<std::string>& before) {
  const auto more = [&] {
    for (const std::string& name : segments()) {
      if (!before.contains(name)) return true;
    }
    return false;
  };
  for (const auto end = Clock::now() + kLimit; more();) {
    REQUIRE_MESSAGE(Clock::now() < end, "a segment is left in /dev/shm");
    std::this_thread::sleep_for(20ms);
  }
}

// The file of the segment that this process has mapped: nobody else's, and without a name.
void check_privacy() {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (!std::filesystem::read_symlink(entry.path(), gone).string().starts_with("/dev/shm/")) continue;
    struct stat facts{};
    REQUIRE_MESSAGE(stat(entry.path().c_str(), &facts) == 0, "cannot look at the segment");
    REQUIRE_MESSAGE((facts.st_mode & 0777) == 0600, "others could open the segment");
    REQUIRE_MESSAGE(facts.st_uid == getuid(), "others could open the segment");
    REQUIRE_MESSAGE(facts.st_nlink == 0, "the segment still has a name");
    ++found;
  }
  REQUIRE_MESSAGE(found == 1, "no segment found");
}

using MakePlane = std::function<std::unique_ptr<DataPlane>(Transport&, std::string&)>;

std::unique_ptr<DataPlane> make_one_level(Transport& transport, std::string& why) {
  return make_shm_plane(transport, why);
}
// Of ranks on two hosts, two on each.
std::unique_ptr<DataPlane> make_two_levels(Transport& transport, std::string& why) {
  return make_two_level_plane(transport, {0, 0, 1, 1}, make_point_to_point_rails(transport), why);
}
constexpr int kSplitsOfTwoLevels = 3;

// A verb on tensors of `count` elements a rank, again and again.
struct Repeated {
  Verb verb;
  std::int64_t count;
  std::vector<float> in, out;
  std::vector<Segment> segments;
  Spread spread;
  Exchange exchange;

  Repeated(Verb wanted, std::int64_t length, int size)
      : verb(wanted), count(length), in(static_cast<std::size_t>(length * size)), out(in.size()) {
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(size), count);
    segments = {{in.data(), in.data(), count}};
    spread = {in.data(), out.data(), counts};
    exchange = {in.data(), out.data(), counts, counts, count};
  }

  Task once(DataPlane& plane) const {
    switch (verb) {
      case Verb::kAllgather:
        return plane.allgather(sizeof(float), spread);
      case Verb::kReducescatter:
        return plane.reducescatter({}, spread);
      case Verb::kAlltoall:
        return plane.alltoall(sizeof(float), exchange);
      case Verb::kBroadcast:
        return plane.broadcast(0, sizeof(float), segments);
      default:
        return plane.allreduce({}, segments);
    }
  }
};

// Works for ever; writes to `begun` once it has begun.
int work_until_aborted(ProcessTransport& transport, const MakePlane& make_plane, int begun, Verb verb,
                       std::int64_t count) {
  std::string why;
  const auto plane = make_plane(transport, why);
  REQUIRE_MESSAGE(plane != nullptr, why);
  check_privacy();
  const Repeated repeated(verb, count, transport.size());
  try {
    for (int i = 0;; ++i) {
      wait(repeated.once(*plane));
      if (i == 3) REQUIRE_MESSAGE(::write(begun, "x", 1) == 1, "the test is gone");
    }
  } catch (const Error& error) {
    const std::string what = error.what();
    const bool tells = what.find("has died") != std::string::npos || what.find("a peer is gone") != std::string::npos;
    REQUIRE_MESSAGE(error.kind() == ErrorKind::kAborted, what);
    REQUIRE_MESSAGE(tells, what);
    return kAbortedAsItShould;
  }
}

void check_death(int size, int victim, std::int64_t count, const MakePlane& make_plane, Verb verb = Verb::kAllreduce) {
  const std::set<std::string> before = segments();
  std::vector<Sockets> sockets;  // of all ranks, and of the parts that they split into
  for (int i = 0; i < 1 + kSplitsOfTwoLevels; ++i) sockets.emplace_back(size);
  std::array<int, 2> begun{};
  REQUIRE_MESSAGE(pipe(begun.data()) == 0, "no pipe");
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(in_process([&] {
      for (const Sockets& each : sockets) each.leave_to(rank);
      ProcessTransport transport(sockets[0], rank, std::span(sockets).subspan(1));
      return work_until_aborted(transport, make_plane, begun[1], verb, count);
    }));
  }
  for (const Sockets& each : sockets) each.leave_to(-1);
  close(begun[1]);  // so that read() ends when all ranks have
  char byte = 0;
  for (int rank = 0; rank < size; ++rank) REQUIRE_MESSAGE(::read(begun[0], &byte, 1) == 1, "a rank did not begin");
  kill(ranks[static_cast<std::size_t>(victim)], SIGKILL);
  for (int rank = 0; rank < size; ++rank) {
    const int code = exit_code_within_limit(ranks[static_cast<std::size_t>(rank)]);
    REQUIRE_MESSAGE(code == (rank == victim ? -1 : kAbortedAsItShould), "rank ", rank, " ended with ", code);
  }
  check_nothing_is_left(before);
  close(begun[0]);
}

// A /dev/shm of our own. False where neither root nor a user's namespaces may have one.
bool mount_small_shm(std::size_t bytes) {
  if (unshare(CLONE_NEWNS) != 0) {
    const uid_t user = getuid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
  }
  const std::string size = "size=" + std::to_string(bytes);
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", "/dev/shm", "tmpfs", 0, size.c_str()) == 0;
}

// Files that grow beyond the limit fail like those on a full disk; for machines that allow no mount.
void limit_files(std::size_t bytes) {
  signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{bytes, bytes};
  REQUIRE_MESSAGE(setrlimit(RLIMIT_FSIZE, &limit) == 0, "cannot limit files");
}

void on_ranks(int size, const std::function<void(Transport&)>& body) {
  auto transports = make_loopback(size);
  std::vector<std::thread> threads;
  for (auto& transport : transports) threads.emplace_back([&] { body(*transport); });
  for (std::thread& thread : threads) thread.join();
}

void check_large_allreduce(const DataPlanes& planes, Transport& transport, std::string_view expected_plane) {
  constexpr std::int64_t kCount = 25'000'000;  // 100 MB
  std::vector<float> data(kCount, static_cast<float>(transport.rank() + 1));
  const std::vector<Segment> segments = {{data.data(), data.data(), kCount}};
  DataPlane& plane = choose(planes, {.bytes = kCount * 4});
  REQUIRE_MESSAGE(plane.name() == expected_plane, "wrong plane");
  wait(plane.allreduce({}, segments));
  const auto right = static_cast<float>(transport.size() * (transport.size() + 1) / 2);
  REQUIRE_MESSAGE(std::ranges::count(data, right) == kCount, "wrong sum");
}

int with_one_megabyte() {
  if (!mount_small_shm(1 << 20)) limit_files(1 << 20);
  on_ranks(4, [](Transport& transport) {
    DataPlanes planes;
    std::string why;
    REQUIRE_MESSAGE(make_shm_plane(transport, why) == nullptr, "a plane in too little memory");
    for (const char* part : {"rank 0: /dev/shm has no room for 10", " bytes: ", "--shm-size=1g"}) {
      REQUIRE_MESSAGE(why.find(part) != std::string::npos, why);
    }
    REQUIRE_MESSAGE(make_two_levels(transport, why) == nullptr, "two levels in too little memory");
    // The one of the two hosts that comes second.
    REQUIRE_MESSAGE(why.find(": on its host, local rank 0: /dev/shm has no room for ") != std::string::npos, why);
    planes.push_back(make_point_to_point_plane(transport));
    check_large_allreduce(planes, transport, planes.front()->name());
  });
  return 0;
}

int with_four_megabytes() {
  if (!mount_small_shm(4 << 20)) limit_files(16 << 20);
  on_ranks(4, [](Transport& transport) {
    DataPlanes planes;
    std::string why;
    planes.push_back(make_shm_plane(transport, why));
    REQUIRE_MESSAGE(planes.front() != nullptr, why);
    check_large_allreduce(planes, transport, "shm");
  });
  return 0;
}

// A rank of two levels, in a process of its own.
int add_up_once(const std::vector<Sockets>& sockets, int rank) {
  constexpr std::int64_t kCount = 1'000'000;
  for (const Sockets& each : sockets) each.leave_to(rank);
  ProcessTransport transport(sockets[0], rank, std::span(sockets).subspan(1));
  std::string why;
  const auto plane = make_two_levels(transport, why);
  REQUIRE_MESSAGE(plane != nullptr, why);
  std::vector<float> data(kCount, static_cast<float>(rank + 1));
  const std::vector<Segment> segments = {{data.data(), data.data(), kCount}};
  wait(plane->allreduce({}, segments));
  REQUIRE_MESSAGE(std::ranges::count(data, 10.0F) == kCount, "wrong sum");
  return 0;
}

// The first host has a /dev/shm so small that slots are small there.
int with_unequal_hosts() {
  std::vector<Sockets> sockets;
  for (int i = 0; i < 1 + kSplitsOfTwoLevels; ++i) sockets.emplace_back(4);
  const auto host = [&](bool small, int first) {
    return in_process([&sockets, small, first] {
      if (small) static_cast<void>(mount_small_shm(4 << 20));  // equal to the other where that is not allowed
      const std::array<pid_t, 2> ranks = {in_process([&] { return add_up_once(sockets, first); }),
                                          in_process([&] { return add_up_once(sockets, first + 1); })};
      return exit_code_within_limit(ranks[0]) | exit_code_within_limit(ranks[1]);
    });
  };
  const std::array<pid_t, 2> hosts = {host(true, 0), host(false, 2)};
  return exit_code_within_limit(hosts[0]) | exit_code_within_limit(hosts[1]);
}

void check_in_process(const std::function<int()>& body) {
  REQUIRE_MESSAGE(exit_code_within_limit(in_process(body)) == 0, "failed in another process");
}

TEST_CASE("Without room for the smallest segment, another plane is used") { check_in_process(with_one_megabyte); }

TEST_CASE("With little room, the segment is smaller") { check_in_process(with_four_megabytes); }

TEST_CASE("Hosts may have segments of different sizes") { check_in_process(with_unequal_hosts); }

TEST_CASE("The death of a rank ends the others, and nothing is left in /dev/shm") {
  for (const int victim : {0, 1, 2}) {
    for (const std::int64_t count : {10, 2'000'000}) check_death(3, victim, count, make_one_level);
  }
}

TEST_CASE("The death of a rank ends the others in every verb") {
  for (const Verb verb : {Verb::kAllgather, Verb::kReducescatter, Verb::kAlltoall, Verb::kBroadcast}) {
    for (const std::int64_t count : {10, 300'000}) check_death(3, 1, count, make_one_level, verb);
  }
}

TEST_CASE("The death of a rank ends the ranks of both hosts") {
  for (const int victim : {0, 3}) {
    for (const std::int64_t count : {10, 30'000}) check_death(4, victim, count, make_two_levels);
  }
}

}  // namespace
}  // namespace sirtaki::contract
