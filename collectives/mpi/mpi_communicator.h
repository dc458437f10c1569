// A communicator that Sirtaki made; the destructor frees it.
#pragma once

#include <memory>
#include <utility>

#include "mpi/mpi_library.h"

namespace sirtaki {

class MpiCommunicator {
 public:
  MpiCommunicator(std::shared_ptr<const MpiLibrary> library, MpiComm comm)
      : library_(std::move(library)), comm_(comm) {}
  MpiCommunicator(MpiCommunicator&&) noexcept = default;
  MpiCommunicator& operator=(MpiCommunicator&&) = delete;
  ~MpiCommunicator();

  // Collective over the communicator; blocks.
  MpiCommunicator duplicate() const { return {library_, library_->duplicate(comm_)}; }

  int rank() const { return library_->rank(comm_); }
  int size() const { return library_->size(comm_); }
  MpiComm comm() const { return comm_; }
  const MpiLibrary& mpi() const { return *library_; }
  const std::shared_ptr<const MpiLibrary>& library() const { return library_; }

  // Gives the communicator up without freeing it, because unfinished operations may still use it.
  void leak() { library_ = nullptr; }

 private:
  std::shared_ptr<const MpiLibrary> library_;  // null once moved away
  MpiComm comm_;
};

}  // namespace sirtaki
