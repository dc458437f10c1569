#include "engine/handshake.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <numeric>
#include <optional>

#include "agreement/agreement.h"
#include "base/error.h"
#include "base/serialization.h"
#include "base/topology.h"
#include "host/backoff.h"
#include "transport/control_channel.h"

namespace sirtaki {
namespace {

using Introductions = std::vector<std::optional<Introduction>>;

void write(Writer& writer, const Introduction& introduction) {
  writer.text(introduction.program);
  writer.text(introduction.settings);
  writer.text(introduction.host_name);
  writer.text(introduction.host_id);
}

Introduction read(Reader& reader) {
  Introduction introduction;
  introduction.program = reader.text();
  introduction.settings = reader.text();
  introduction.host_name = reader.text();
  introduction.host_id = reader.text();
  return introduction;
}

// Waits for messages until a time limit.
class Waiter {
 public:
  explicit Waiter(const Settings& settings)
      : limit_(std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                                      std::chrono::duration<double>(settings.start_timeout_seconds))) {}

  // False if the time is over.
  bool wait_for(ControlChannel& control, Message& message) {
    backoff_.reset();
    while (!control.receive(message)) {
      if (std::chrono::steady_clock::now() > limit_) return false;
      backoff_.pause(doorbell_, false);
    }
    return true;
  }

 private:
  std::chrono::steady_clock::time_point limit_;
  Doorbell doorbell_;
  Backoff backoff_{false};
};

std::string find_difference(const Introductions& all) {
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto differs = [&](const char* what, const std::string& first, const std::string& other) {
      return std::string("The ranks do not run the same ") + what + ": rank 0 on " + all[0]->host_name + " has '" +
             first + "', rank " + std::to_string(rank) + " on " + all[rank]->host_name + " has '" + other +
             "'. Install and configure all hosts alike.";
    };
    if (all[rank]->program != all[0]->program) return differs("program", all[0]->program, all[rank]->program);
    if (all[rank]->settings != all[0]->settings) return differs("settings", all[0]->settings, all[rank]->settings);
  }
  return "";
}

void gather(ControlChannel& control, Introductions& all, const Settings& settings) {
  Waiter waiter(settings);
  for (std::size_t arrived = 1; arrived < all.size(); ++arrived) {
    Message message;
    if (!waiter.wait_for(control, message)) {
      std::vector<int> missing;
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (!all[rank]) missing.push_back(static_cast<int>(rank));
      }
      throw Error(ErrorKind::kPrecondition, std::to_string(arrived) + " of " + std::to_string(all.size()) +
                                                " ranks arrived within " +
                                                std::to_string(static_cast<int>(settings.start_timeout_seconds)) +
                                                " s (SIRTAKI_START_TIMEOUT), missing: " + list_ranks(missing));
    }
    std::optional<Introduction>& theirs = all[static_cast<std::size_t>(message.from)];
    if (theirs)
      throw Error(ErrorKind::kPrecondition, "two processes connected as rank " + std::to_string(message.from));
    Reader reader(message.bytes);
    theirs = read(reader);
    reader.finish();
  }
}

// The reason why the job cannot start, for all ranks; empty if there is none.
std::string find_problem(ControlChannel& control, Introductions& all, const Settings& settings) {
  try {
    gather(control, all, settings);
  } catch (const Error& error) {
    return error.what();
  }
  return find_difference(all);
}

ControlChannel control_channel(Transport& transport) {
  std::vector<int> names(static_cast<std::size_t>(transport.size()));
  std::iota(names.begin(), names.end(), 0);
  return {transport, std::move(names)};
}

std::vector<Introduction> lead(Transport& transport, const Introduction& own, const Settings& settings) {
  Introductions all(static_cast<std::size_t>(transport.size()));
  all[0] = own;
  ControlChannel control = control_channel(transport);
  const std::string problem = find_problem(control, all, settings);
  Writer writer;
  writer.text(problem);
  std::vector<Introduction> result;
  for (const auto& introduction : all) result.push_back(introduction.value_or(Introduction()));
  if (problem.empty()) {
    for (const Introduction& introduction : result) write(writer, introduction);
  }
  const Bytes bytes = writer.take();
  for (int rank = 1; rank < transport.size(); ++rank) control.send(rank, bytes);
  if (!problem.empty()) throw Error(ErrorKind::kPrecondition, problem);
  return result;
}

std::vector<Introduction> follow(Transport& transport, const Introduction& own, const Settings& settings) {
  Writer writer;
  write(writer, own);
  ControlChannel control = control_channel(transport);
  control.send(0, writer.take());
  // Rank 0 waits for the slowest rank, and then needs time to send the result.
  Settings patient = settings;
  patient.start_timeout_seconds += 5;
  Message message;
  if (!Waiter(patient).wait_for(control, message)) {
    throw Error(ErrorKind::kPrecondition,
                "rank " + std::to_string(transport.rank()) + " got no answer from rank 0 within " +
                    std::to_string(static_cast<int>(patient.start_timeout_seconds)) + " s (SIRTAKI_START_TIMEOUT)");
  }
  Reader reader(message.bytes);
  const std::string problem = reader.text();
  if (!problem.empty()) throw Error(ErrorKind::kPrecondition, problem);
  std::vector<Introduction> result(static_cast<std::size_t>(transport.size()));
  for (Introduction& introduction : result) introduction = read(reader);
  reader.finish();
  return result;
}

}  // namespace

Introduction introduce(const std::string& program, const Settings& settings) {
  std::array<char, 256> system_name{};
  gethostname(system_name.data(), system_name.size() - 1);
  const std::string name = settings.host_name.empty() ? system_name.data() : settings.host_name;
  // Containers on different machines may have equal names, so add the machine's boot id.
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return {program, settings.agreed(), name, name + "/" + boot};
}

std::vector<Introduction> shake_hands(Transport& transport, const Introduction& own, const Settings& settings) {
  return transport.rank() == 0 ? lead(transport, own, settings) : follow(transport, own, settings);
}

}  // namespace sirtaki
