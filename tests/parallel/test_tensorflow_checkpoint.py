"""checkpoint() and latest() of TensorFlow: variables and tensors come back as arrays."""

import tensorflow as tf
from ranks import ranks

import sirtaki.tensorflow as hvd


@ranks(2)
def test_variables_and_tensors(rank_count, tmp_path):
    folder = hvd.broadcast_object(str(tmp_path), 0)
    variable = tf.Variable([1.0, hvd.rank() + 2.0])
    state = {"variables": [variable], "half": tf.constant([1.5], tf.bfloat16), "step": tf.constant(3), "name": "a"}
    hvd.checkpoint(folder, state)
    variable.assign([7.0, 7.0])
    back = hvd.latest(folder)
    variable.assign(back["variables"][0])
    assert variable.numpy().tolist() == [1, 2]
    assert back["half"].dtype == tf.bfloat16.as_numpy_dtype and back["half"].tolist() == [1.5]
    assert back["step"] == 3 and back["name"] == "a"
