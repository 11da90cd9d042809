import argparse
import runpy

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, required=True)
parser.parse_args()
runpy.run_path("place.py")
