#include "bindings.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

template <class Enum>
py::dict numbers(int count) {
  py::dict result;
  for (int i = 0; i < count; ++i) result[py::str(std::string(name_of(static_cast<Enum>(i))))] = i;
  return result;
}

}  // namespace

void bind_types(py::module_& module) {
  module.attr("VERBS") = numbers<Verb>(kVerbCount);
  module.attr("DTYPES") = numbers<DType>(kDTypeCount);
  py::dict ops;
  for (const auto& [name, number] : numbers<ReduceOp>(kReduceOpCount)) ops[name.attr("lower")()] = number;
  module.attr("OPS") = ops;
  module.attr("FIRST_MEMBERS_ONLY_SET") = kFirstMembersOnlySet;
  module.attr("END_OF_PROCESS_SETS") = kEndOfProcessSets;
}

}  // namespace sirtaki
