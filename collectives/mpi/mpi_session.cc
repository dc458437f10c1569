#include "mpi/mpi_session.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace sirtaki {
namespace {

constexpr int kGroupTag = 7461;  // unlikely in a program's own MPI_Comm_create_group at the same time

std::string name_of(MpiThreads threads) {
  constexpr std::array<std::string_view, kMpiThreadsCount> names = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED",
                                                                    "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE"};
  return std::string(names[static_cast<std::size_t>(threads)]);
}

std::string to_string(std::span<const int> ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "[" + text + "]";
}

void check_ranks(std::span<const int> ranks, int rank, int size) {
  std::vector<int> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kInvalidArgument, "ranks " + to_string(ranks) + ": " + why);
  };
  for (const int each : sorted) {
    if (each < 0 || each >= size) refuse(std::to_string(each) + " is not a rank of 0.." + std::to_string(size - 1));
  }
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    refuse(std::to_string(*twice) + " is listed twice");
  }
  if (!std::binary_search(sorted.begin(), sorted.end(), rank)) {
    refuse("this process, rank " + std::to_string(rank) + " of MPI_COMM_WORLD, is not among them");
  }
}

}  // namespace

MpiSession::MpiSession(std::shared_ptr<const MpiLibrary> library, MpiThreads wanted) : library_(std::move(library)) {
  require_alive();
  initialized_here_ = !library_->is_initialized();
  threads_ = initialized_here_ ? library_->init(wanted) : library_->threads();
  if (threads_ >= MpiThreads::kSerialized) return;
  throw Error(
      ErrorKind::kPrecondition,
      initialized_here_
          ? library_->path() + " provides only " + name_of(threads_) +
                "; a background thread needs MPI_THREAD_SERIALIZED at least: use an MPI built with thread support"
          : "MPI was initialised by other code with " + name_of(threads_) +
                ", but a background thread needs MPI_THREAD_MULTIPLE: initialise Sirtaki first, or ask for "
                "that level where MPI is initialised (mpi4py: mpi4py.rc.thread_level = 'multiple')");
}

void MpiSession::require_alive() const {
  if (!library_->is_finalized()) return;
  throw Error(ErrorKind::kPrecondition, "MPI has been finalised in this process and cannot be initialised again");
}

MpiCommunicator MpiSession::world() const {
  require_alive();
  return {library_, library_->duplicate(library_->comm_world())};
}

MpiCommunicator MpiSession::duplicate(std::uint64_t handle) const {
  require_alive();
  const auto comm = static_cast<MpiComm>(handle);
  if (library_->is_null(comm)) throw Error(ErrorKind::kInvalidArgument, "the communicator given is MPI_COMM_NULL");
  if (library_->is_intercommunicator(comm)) {
    throw Error(ErrorKind::kInvalidArgument,
                "the communicator given is an intercommunicator; give an intracommunicator");
  }
  return {library_, library_->duplicate(comm)};
}

MpiCommunicator MpiSession::of_ranks(std::span<const int> ranks) const {
  require_alive();
  const MpiComm world = library_->comm_world();
  check_ranks(ranks, library_->rank(world), library_->size(world));
  return {library_, library_->create_group(world, ranks, kGroupTag)};
}

void MpiSession::finalize() {
  if (!initialized_here_ || library_->is_finalized()) return;
  library_->finalize();
}

}  // namespace sirtaki
