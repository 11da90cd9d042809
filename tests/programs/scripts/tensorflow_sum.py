import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1)))
task = strategy.cluster_resolver.task_id
print("done", task, "of", int(strategy.experimental_local_results(total)[0]))
