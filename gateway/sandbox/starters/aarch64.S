// The command of every sandbox until an order comes, for aarch64; x86_64.S says what it does, step by step.
//
// struct msghdr and struct cmsghdr: linux/socket.h; the calls: asm-generic/unistd.h.

        .set    IMAGE, 6                        // the descriptors that it begins with
        .set    ORDERS, 7
        .set    BLOCK, 0x10000000               // where the arguments lie
        .set    HERE, 1                         // the byte that it says first
        .set    FORGOTTEN, 125                  // how it ends
        .set    NOT_EXECUTED, 126
        .set    EBADMSG, 74

        .set    IOVEC, 56                       // on the stack: struct msghdr, then these
        .set    NUMBERS, 72                     // length of the block; addresses of path, argv, envp
        .set    RIGHTS, 104                     // struct cmsghdr, then four descriptors
        .set    FRAME, 144

        .globl  _start
        .text
_start:
        sub     sp, sp, FRAME
        mov     x9, HERE
        str     x9, [sp]
        mov     x8, 64                          // write
        mov     x0, ORDERS
        mov     x1, sp
        mov     x2, 1
        svc     0
        cmp     x0, 1
        b.ne    forgotten

        stp     xzr, xzr, [sp]                  // msg_name, msg_namelen
        mov     x10, 1
        add     x9, sp, IOVEC
        stp     x9, x10, [sp, 16]
        mov     x10, 32
        add     x9, sp, RIGHTS
        stp     x9, x10, [sp, 32]
        str     xzr, [sp, 48]
        add     x9, sp, NUMBERS
        stp     x9, x10, [sp, IOVEC]
        mov     x8, 212                         // recvmsg
        mov     x0, ORDERS
        mov     x1, sp
        mov     x2, 0x40000000                  // MSG_CMSG_CLOEXEC
        svc     0
        cmp     x0, 0
        b.le    forgotten
        cmp     x0, 32
        b.ne    odd
        ldr     w9, [sp, 48]
        tst     w9, 0x20                        // MSG_TRUNC
        b.ne    odd
        tst     w9, 0x8                         // MSG_CTRUNC
        b.ne    odd
        ldr     x9, [sp, 40]
        cmp     x9, 32
        b.ne    odd
        ldr     x9, [sp, RIGHTS]
        cmp     x9, 32
        b.ne    odd
        ldr     w9, [sp, RIGHTS + 8]            // SOL_SOCKET
        cmp     w9, 1
        b.ne    odd
        ldr     w9, [sp, RIGHTS + 12]           // SCM_RIGHTS
        cmp     w9, 1
        b.ne    odd

        mov     x19, 0
        add     x20, sp, RIGHTS + 16
streams:
        mov     x8, 24                          // dup3, which leaves them open at the execution
        ldr     w0, [x20, x19, lsl 2]
        mov     x1, x19
        mov     x2, 0
        svc     0
        cmp     x0, x19
        b.ne    refused
        add     x19, x19, 1
        cmp     x19, 3
        b.ne    streams

        mov     x8, 222                         // mmap
        mov     x0, BLOCK
        ldr     x1, [sp, NUMBERS]
        mov     x2, 1                           // PROT_READ
        mov     x3, 0x100000                    // MAP_FIXED_NOREPLACE
        orr     x3, x3, 2                       // MAP_PRIVATE
        ldrsw   x4, [sp, RIGHTS + 28]
        mov     x5, 0
        svc     0
        mov     x9, BLOCK
        cmp     x0, x9
        b.ne    refused

        mov     x8, 25                          // fcntl: the execution closes the socket, which tells of it
        mov     x0, ORDERS
        mov     x1, 2                           // F_SETFD
        mov     x2, 1                           // FD_CLOEXEC
        svc     0
        cbnz    x0, refused
        mov     x8, 57                          // close
        mov     x0, IMAGE
        svc     0
        cbnz    x0, refused

        mov     x8, 221                         // execve
        ldp     x0, x1, [sp, NUMBERS + 8]
        ldr     x2, [sp, NUMBERS + 24]
        svc     0
        b       refused

odd:
        mov     x0, -EBADMSG
refused:
        neg     w9, w0
        str     w9, [sp]
        mov     x8, 64                          // write
        mov     x0, ORDERS
        mov     x1, sp
        mov     x2, 4
        svc     0
        mov     x0, NOT_EXECUTED
        b       end
forgotten:
        mov     x0, FORGOTTEN
end:
        mov     x8, 94                          // exit_group
        svc     0
        brk     0
