#include "loader/symbol_reader.h"

#include <stdexcept>

namespace sirtaki {

void SymbolReader::require_all(const std::string& complaint) const {
  if (missing_.empty()) return;
  std::string names;
  for (const std::string& name : missing_) names += (names.empty() ? "" : ", ") + name;
  throw std::runtime_error(complaint + " lacks " + names);
}

}  // namespace sirtaki
