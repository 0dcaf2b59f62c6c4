# ruff: noqa: E501
"""Small kernels in the compiler's notation, written by hand for the tests."""

# Six turns; of every three, one enters the guarded region (bundles 8 to 10). The counter is spilled and filled. Branches have a
# shadow of four bundles.
GUARDED = """
= control target key start
LH: loop header
= control target key end

     0   :  { %s1_s0 = inlined_call_operand.hbm [shape: f32[8,128], index: 0, kind: input, shape index: {}] /* operand 0 */ }
   0x1   :  { %s9_s1 = smov 0 /* copy for cssa */  ;;  %s8_s2 = smov 0 }
   0x2 LB: > { %s10_s1 = sphi %s9_s1, %s20_s1 /* phi copy */  ;;  %s11_s2 = sphi %s8_s2, %s21_s2  ;;  %2 = sst [smem:[#allocation9_spill]] %s10_s1 } /* Start region 5 :: Start region 6 */
   0x3   : > { %p3_p0 = scmp.ne.s32.totalorder %s11_s2, 0 } /* End region 6 */
   0x4   : > { %7 = sbr.rel (%p3_p0) target = $region8  ;;  %v1_v0 = vmov 0.0 }
   0x5   : > { %s12_s3 = sadd.s32 1, %s11_s2 }
   0x6   : > { %p4_p1 = scmp.ge.s32.totalorder %s12_s3, 3 }
   0x7   : > { %s21_s2 = smov (%p4_p1, %s12_s3), 0 /* copy for cssa */ }
   0x8   :  {}
   0x9   : > { %9 = vst [vmem:[#allocation3] sm:$0xff] /*vst_source=*/%v1_v0 }
   0xa   : > { %30 = vmatmul.bf16.gmra.mxu0 %v1_v0  ;;  %31 = vmatmul.bf16.gmra.mxu1 %v1_v0 } /* End region 7 */
   0xb PF: > { %s13_s4 = sld [smem:[#allocation9_spill]] } /* Start/End empty region 8 */
   0xc   : > { %s20_s1 = sadd.s32 1, %s13_s4 }
   0xd   : > { %p5_p2 = scmp.ge.s32.totalorder %s20_s1, 6 /* loop exit test */ }
   0xe   : > { %8 = sbr.rel (!%p5_p2) target = $region5 }
   0xf   :  {}
  0x10   :  {}
  0x11   :  {}
  0x12   :  {} /* End region 5 */
  0x13   :  { %12 = vnop }
"""

UTILIZATION = """== CAPACTIY:
MXU, XLU, VALU, VLOAD:FILL, VSTORE:SPILL, SALU
    4     3     4     3     1     2
== UTILIZATION:
""" + "\n".join("2 0 1 0 0 0" if row == 10 else "0 0 0 1 0 1" if row == 3 else "0 0 0 0 0 1" for row in range(20))

# A grid of four steps, each of which waits for the copy that the step before began, then begins the next and computes.
PIPELINE = """
     0   :  { %s1_s0 = inlined_call_operand.hbm [shape: f32[8,128], index: 0, kind: input, shape index: {}] /* operand 0 */  ;;  %s9_s1 = smov 0 }
   0x1   :  { %s2_s2 = scalar_lea.sflag [#allocation5], 1 }
   0x2   :  { %40 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s1_s0, /*size_in_granules=*/100, /*vmem=*/%s1_s0, /*dst_syncflagno=*/%s2_s2 }
   0x3 LB: > { %s10_s1 = sphi %s9_s1, %s20_s1 } /* Start region 5 */
   0x4   : > { %41 = dma.done.wait %s2_s2, 100 /* pipeline-emitter-dma-wait */  ;;  %s20_s1 = sadd.s32 1, %s10_s1 }
   0x5   : > { %p5_p2 = scmp.ge.s32.totalorder %s20_s1, 4  ;;  %p6_p3 = scmp.lt.s32.totalorder %s20_s1, 4 }
   0x6   : > { %42 = dma.hbm_to_vmem [thread:$0]  (%p6_p3), /*hbm=*/%s1_s0, /*size_in_granules=*/100, /*vmem=*/%s1_s0, /*dst_syncflagno=*/%s2_s2 /* 
window_bounds: (4, 2)
iteration_bounds: (4)
element_size_in_bytes: 2048
second_minor_factor: 1 */ }
   0x7   : > { %8 = sbr.rel (!%p5_p2) target = $region5 }
   0x8   :  {}
   0x9   :  {}
   0xa   :  {}
   0xb   :  {} /* End region 5 */
   0xc   :  { %12 = vnop }
"""

# As many turns as the number in an operand; a test of an entry of a table for each; a copy where it holds.
TABLED = """
     0   :  { %s1_s0 = inlined_call_operand.<no memory space> [shape: s32[], index: 0, kind: input, shape index: {}]  ;;  %s2_s1 = inlined_call_operand.vmem [shape: s32[4], index: 1, kind: input, shape index: {}] }
   0x1   :  { %s3_s2 = sshll.u32 %s2_s1, 4  ;;  %s4_s2 = int_to_ptr.vmem [resolvable:$true] %s3_s2 }
   0x2   :  { %s5_s3 = smov [#allocation4]  ;;  %s9_s4 = smov 0 }
   0x3   :  { %15 = dma.vmem_to_smem /*vmem=*/%s4_s2, /*size_in_granules=*/16, /*smem=*/%s5_s3, /*dst_syncflagno=*/[#allocation1] }
   0x4   :  { %30 = dma.done.wait [#allocation1], 16 }
   0x5 LB: > { %s10_s4 = sphi %s9_s4, %s20_s4 } /* Start region 5 */
   0x6   : > { %s11_s5 = sld [smem:[#allocation4 + %s10_s4]]  ;;  %s20_s4 = sadd.s32 1, %s10_s4 }
   0x7   : > { %p3_p0 = scmp.eq.s32.totalorder %s11_s5, 7  ;;  %p5_p2 = scmp.ge.s32.totalorder %s20_s4, %s1_s0 }
   0x8   : > { %41 = dma.hbm_to_vmem [thread:$0]  (%p3_p0), /*hbm=*/%s1_s0, /*size_in_granules=*/10, /*vmem=*/%s1_s0, /*dst_syncflagno=*/[#allocation2] }
   0x9   : > { %8 = sbr.rel (!%p5_p2) target = $region5 }
   0xa   :  {}
   0xb   :  {}
   0xc   :  {}
   0xd   :  {} /* End region 5 */
"""

# The top level of a module: leaves early unless the machine's state says otherwise, then calls its kernel twice.
TOP = """
     0   :  { %s5_s20 = sld [smem:[#allocation2]] }
   0x1   :  { %p1_p1 = scmp.ne.s32.totalorder %s5_s20, 1 }
   0x2   :  { %9 = sbr.rel (%p1_p1) target = $region4 }
   0x3   :  {}
   0x4   :  {}
   0x5   :  {}
   0x6   :  {}
   0x7   :  { %78 = inlined_call %s5_s20, %s5_s20 /* %kernel.1 = custom-call(%x) */ }
   0x8   :  { %79 = inlined_call %s5_s20, %s5_s20 /* %kernel.1 = custom-call(%x) */ } /* Start/End empty region 4 */
"""
