// When TensorFlow loads this library, it registers the ops and kernels. Then sirtaki.tensorflow connects them to the
// engine. No exception leaves this library; an error is kept until Python asks for it.
#include <exception>
#include <string>

#include "call.h"
#include "kernels.h"
#include "ops.h"

namespace sirtaki::tensorflow {
namespace {

std::string& complaint() {
  static auto* const text = new std::string;
  return *text;
}

[[gnu::constructor]] void register_all() {
  if (!problem().empty()) {
    complaint() = problem();
    return;
  }
  try {
    register_ops();
    register_kernels();
  } catch (const std::exception& error) {
    complaint() = error.what();
  }
}

}  // namespace
}  // namespace sirtaki::tensorflow

// sirtaki.tensorflow calls it with the result of sirtaki._core.c_api(). Returns "" or an error message.
extern "C" [[gnu::visibility("default")]] const char* sirtaki_tensorflow_connect(const SirtakiApi* table) {
  std::string& text = sirtaki::tensorflow::complaint();
  if (!text.empty()) return text.c_str();
  if (table->version != kSirtakiApiVersion) {
    text = "this library was built for version " + std::to_string(kSirtakiApiVersion) +
           " of the core's C interface, but the core has version " + std::to_string(table->version) +
           "; install the package again";
    return text.c_str();
  }
  sirtaki::tensorflow::connect_core(table);
  return "";
}
