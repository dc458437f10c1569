// Sirtaki's ops as TensorFlow's kernels.
#pragma once

namespace sirtaki::tensorflow {

// Needs the definitions of tensorflow_ops.h. Throws std::runtime_error with TensorFlow's words.
void register_kernels();

}  // namespace sirtaki::tensorflow
