// The kernels of Sirtaki's ops for TensorFlow.
#pragma once

namespace sirtaki::tensorflow {

// Call register_ops() (ops.h) before. Throws std::runtime_error with TensorFlow's message.
void register_kernels();

}  // namespace sirtaki::tensorflow
