import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init(address="auto")


@ray.remote(num_cpus=0)
def where():
    return ray.get_runtime_context().get_node_id()


nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
tasks = [where.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote() for node in nodes]
print("done", 0, "of", len(set(ray.get(tasks))))
