// The definitions of Sirtaki's ops for TensorFlow.
#pragma once

namespace sirtaki::tensorflow {

// Throws std::runtime_error with TensorFlow's message.
void register_ops();

}  // namespace sirtaki::tensorflow
