"""Spec sheets: one YAML per chip; around it hosts/, networks/, prices/ and power/.  Data, no code.

Every figure is a mapping ``{value, source, note}``: `source` is a page a reader can open, `note` says how the figure
was derived when the page does not print it as it stands here.  A figure without a source is left out (it is then
`unknown`).  Prefixes are decimal (1 GB/s = 1e9 byte/s) except where the key says KiB, MiB or GiB.

Keys of a chip file:

name                        what a person calls it
maker, generation           generation is the key of tables by architecture: volta, turing, ampere, ampere-ga10x, ada,
                            hopper, blackwell, blackwell-gb20x, cdna2, cdna3, cdna4, gaudi2, gaudi3, tpu-v4, apple, ...
sheet                       the anchor `&sheet` of the main source
dense_tflops                {dtype: figure} of the matrix units: dense (never 2:4 sparse), fp32 accumulation for 16-bit
                            floats; integer dtypes in TOPS.  dtypes: fp64 tf32 fp32 bf16 fp16 fp8 fp6 fp4 int8 int4 int1
vector_tflops               {dtype: figure} of the vector units (CUDA cores, SIMD lanes): fp64 fp32 bf16 fp16
special_per_unit_cycle      exponentials per clock per unit (NVIDIA: 16 per SM), at vector_clock_ghz where given
memory_capacity_gib         device memory
memory_bandwidth_gb_per_s   device memory, read
l2_capacity_mib             last-level cache on the chip; l2_bandwidth_gb_per_s where the maker publishes it
on_chip_kib_per_unit        largest shared memory (LDS, SRAM) of one unit
units                       SMs, compute units, cores
clock_ghz                   the clock dense_tflops are quoted at (boost)
vector_clock_ghz            the clock of vector_tflops where it is another (Hopper runs its tensor cores slower)
matrix_flop_per_unit_cycle  {dtype: figure}: units x clock x this must give dense_tflops (a test checks it)
sparse_speedup              2 where the matrix units have 2:4 structured sparsity
fp16_accumulation_speedup   2 where 16-bit products that sum in fp16 run faster than those of dense_tflops (GeForce)
links                       {nvlink|pcie|xgmi|ethernet|ici|...: {gb_per_s_per_direction: figure, devices: n,
                            needs_bridge: true}}
default_link                the link collectives use; cards whose NVLink needs a bridge default to pcie
tdp_w                       board power

Keys of a file of prices; what stands at its top holds for every row that does not say otherwise:

rows                a list of prices
chip                stem of the chip's file
usd_per_gpu_hour    $ for one GPU for one hour, without taxes, storage and traffic
kind                hyperscaler, neocloud (what an hour costs such an owner), rented, spot
term                cost of ownership, 3 years, on demand, spot: the promise that the price asks for
provider, product   who offers it, and under which name
region              where, if the price is of one region
date                day on which the price was read or published (ISO 8601)
source              page a reader can open; prices of clouds were collected by tgarg01/silybench-data (CC BY 4.0)

power/all-in.yaml holds all_in_kw_per_gpu: power that a data centre provides for one GPU with its server and cooling.
"""
