#include "agreement/agreement.h"

#include <algorithm>
#include <functional>

namespace sirtaki {
namespace {

std::string format(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// A few tensors from number `from` on.
std::string join_tensors(const Request& request, std::size_t from,
                         const std::function<std::string(const TensorSpec&)>& show) {
  constexpr std::size_t kShown = 4;
  const std::size_t count = request.tensors.size();
  std::string text = from > 0 ? "..." : "";
  for (std::size_t i = from; i < std::min(from + kShown, count); ++i) {
    if (i > 0) text += ' ';
    text += show(request.tensors[i]);
  }
  if (from + kShown < count) text += " ...";
  if (count > kShown) text += " (" + std::to_string(count) + " tensors)";
  return text.empty() ? "-" : text;
}

std::string shapes(const Request& r, std::size_t from) {
  return join_tensors(r, from, [](const TensorSpec& t) { return to_string(t.shape); });
}
std::string dtypes(const Request& r, std::size_t from) {
  return join_tensors(r, from, [](const TensorSpec& t) { return std::string(name_of(t.dtype)); });
}
std::string devices(const Request& r, std::size_t from) {
  return join_tensors(r, from, [](const TensorSpec& t) { return name_of_device(t.device); });
}
std::string scales(const Request& r) { return format(r.prescale) + "/" + format(r.postscale); }
std::string op(const Request& r) {
  const bool reduces = r.verb == Verb::kAllreduce || r.verb == Verb::kReducescatter;
  return reduces ? std::string(name_of(r.op)) : "-";
}
std::string root(const Request& r, std::span<const int> global_ranks) {
  if (r.root < 0 || r.verb == Verb::kAddProcessSet) return "-";
  const auto index = static_cast<std::size_t>(r.root);
  return index < global_ranks.size() ? std::to_string(global_ranks[index]) : std::to_string(r.root);
}

bool first_dimension_free(Verb verb) { return verb == Verb::kAllgather || verb == Verb::kAlltoall; }

bool same_shape(const Request& a, const Request& b, std::size_t tensor) {
  const Shape& x = a.tensors[tensor].shape;
  const Shape& y = b.tensors[tensor].shape;
  if (!first_dimension_free(a.verb)) return x == y;
  return x.size() == y.size() && !x.empty() && std::equal(x.begin() + 1, x.end(), y.begin() + 1);
}

struct Difference {
  std::string what;        // in the words of the table's head; empty if there is none
  std::size_t tensor = 0;  // the first that differs
};

std::string differing_in(const Request& a, const Request& b, std::size_t tensor) {
  const TensorSpec& x = a.tensors[tensor];
  const TensorSpec& y = b.tensors[tensor];
  if (x.dtype != y.dtype) return "dtype";
  if (x.device != y.device && (x.device == kHostDevice || y.device == kHostDevice)) return "device";
  if (same_shape(a, b, tensor)) return "";
  return first_dimension_free(a.verb) ? "shape beyond the first dimension" : "shape";
}

// What differs first.
Difference differing(const Request& a, const Request& b) {
  if (a.verb != b.verb) return {"collective"};
  std::size_t tensor = 0;
  const std::size_t common = std::min(a.tensors.size(), b.tensors.size());
  std::string what;
  while (tensor < common && (what = differing_in(a, b, tensor)).empty()) ++tensor;
  if (a.tensors.size() != b.tensors.size()) return {"number of tensors", tensor};
  if (a.op != b.op) return {"op"};
  if (a.prescale != b.prescale || a.postscale != b.postscale) return {"prescale/postscale"};
  if (a.root != b.root) return {"root rank"};
  if (!what.empty()) return {what, tensor};
  const bool about_sets = a.verb == Verb::kAddProcessSet || a.verb == Verb::kRemoveProcessSet;
  return {about_sets && a.splits != b.splits ? "process set" : ""};
}

using Row = std::vector<std::string>;

std::string align(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    text += "\n ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += " " + row[i];
      if (i + 1 < row.size()) text += std::string(widths[i] - row[i].size() + 1, ' ');
    }
  }
  return text;
}

}  // namespace

std::string table_of(const RequestsByRank& requests, std::span<const int> global_ranks, std::size_t from) {
  std::vector<Row> rows = {{"rank", "collective", "op", "root", "shape", "dtype", "device", "scale", "called from"}};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i] == nullptr) continue;
    const Request& r = *requests[i];
    rows.push_back({std::to_string(global_ranks[i]), std::string(name_of(r.verb)), op(r), root(r, global_ranks),
                    shapes(r, from), dtypes(r, from), devices(r, from), scales(r), r.site.empty() ? "-" : r.site});
  }
  return align(rows);
}

namespace {

const std::shared_ptr<const Request>& first_of(const RequestsByRank& requests) {
  return *std::find_if(requests.begin(), requests.end(), [](const auto& request) { return request != nullptr; });
}

std::vector<std::int64_t> gathered_rows(const RequestsByRank& requests, std::size_t tensors) {
  std::vector<std::int64_t> rows;
  rows.reserve(tensors * requests.size());
  for (std::size_t t = 0; t < tensors; ++t) {
    for (const auto& request : requests) rows.push_back(request == nullptr ? 0 : request->tensors[t].shape[0]);
  }
  return rows;
}

std::vector<std::int64_t> exchanged_rows(const RequestsByRank& requests) {
  const auto ranks = static_cast<std::int64_t>(requests.size());
  std::vector<std::int64_t> rows;
  for (const auto& request : requests) {
    if (request == nullptr) {
      rows.insert(rows.end(), requests.size(), 0);
    } else if (request->splits.empty()) {
      rows.insert(rows.end(), requests.size(), request->tensors[0].shape[0] / ranks);
    } else {
      rows.insert(rows.end(), request->splits.begin(), request->splits.end());
    }
  }
  return rows;
}

}  // namespace

std::string find_mismatch(const RequestsByRank& requests, std::span<const int> global_ranks) {
  const Request& first = *first_of(requests);
  for (const auto& request : requests) {
    if (request == nullptr || request == first_of(requests)) continue;
    const auto [what, tensor] = differing(first, *request);
    if (what.empty()) continue;
    const std::string which = tensor > 0 ? " from tensor number " + std::to_string(tensor + 1) + " on" : "";
    return "The ranks disagree on '" + first.title() + "': " + what + " differs" + which + "." +
           table_of(requests, global_ranks, tensor) +
           "\n  Every rank must make the same call under one name; compare the lines above.";
  }
  return "";
}

bool has_part_of(const Agreement& agreement, const Request& request, int rank, int ranks) {
  const TensorSpecs& agreed = agreement.request.tensors;
  if (!first_dimension_free(request.verb))
    return request.tensors == agreed && request.splits == agreement.request.splits;
  if (request.tensors.size() != agreed.size()) return false;
  for (std::size_t t = 0; t < agreed.size(); ++t) {
    if (!differing_in(agreement.request, request, t).empty() || request.tensors[t].device != agreed[t].device)
      return false;
    if (request.verb == Verb::kAlltoall) continue;
    if (request.tensors[t].shape[0] !=
        agreement.sizes[t * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(rank)])
      return false;
  }
  if (request.verb != Verb::kAlltoall) return true;
  const auto own =
      std::span(agreement.sizes)
          .subspan(static_cast<std::size_t>(rank) * static_cast<std::size_t>(ranks), static_cast<std::size_t>(ranks));
  if (!request.splits.empty()) return std::ranges::equal(own, request.splits);
  return std::ranges::all_of(own, [&](std::int64_t rows) { return rows * ranks == request.tensors[0].shape[0]; });
}

Agreement agree(const RequestsByRank& requests) {
  Agreement agreement;
  agreement.request = *first_of(requests);
  if (agreement.request.verb == Verb::kAllgather) {
    agreement.sizes = gathered_rows(requests, agreement.request.tensors.size());
  } else if (agreement.request.verb == Verb::kAlltoall) {
    agreement.sizes = exchanged_rows(requests);
  }
  return agreement;
}

}  // namespace sirtaki
