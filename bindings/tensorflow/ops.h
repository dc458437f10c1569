// Sirtaki's ops as TensorFlow's graphs know them.
#pragma once

namespace sirtaki::tensorflow {

// Throws std::runtime_error with TensorFlow's words.
void register_ops();

}  // namespace sirtaki::tensorflow
