"""What the demonstration and the benchmarks share: ranks that are granted steps, brokers, counters.

grants     a rank's end of the controller's socket      crew       the controller's end
brokers    real daemons in hosts of the lab             fixed      an administrator's HTB tree
sampler    wire and CPU counters, from outside          usage      CPU seconds of each program
series     counters over time, percentiles              programs   how our programs are started and ended
reporting  what a command says and the report it leaves  wall_clock  a clock that is set while programs run
compare    reports of several runs side by side         tail        a file of JSON lines that grows
volatile_churn  members of a volatile group, killed, stopped and cut off at random: the weights of all have to agree
"""
