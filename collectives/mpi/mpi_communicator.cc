#include "mpi/mpi_communicator.h"

#include "base/error.h"

namespace sirtaki {

MpiCommunicator::~MpiCommunicator() {
  if (library_ == nullptr) return;
  try {
    if (!library_->is_finalized() && !library_->is_null(comm_)) library_->free(comm_);
  } catch (const Error&) {
    // The job has failed already, and its cause is recorded.
  }
}

}  // namespace sirtaki
