// The files of models/breeze/weights as they are, found through the assembler's include path. embedded_model.cc names them.
    .macro embed symbol, file
    .balign 4096
    .globl tramontane_\symbol
tramontane_\symbol:
    .incbin "\file"
    .globl tramontane_\symbol\()_end
tramontane_\symbol\()_end:
    .byte 0
    .endm

    .section .rodata
    embed config, "config.json"
    embed generation_config, "generation_config.json"
    embed weights, "model.safetensors"
    embed tokenizer, "tokenizer.model.v3"

    .section .note.GNU-stack, "", %progbits
