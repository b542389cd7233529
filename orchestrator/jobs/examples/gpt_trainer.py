"""Train a small GPT-2 with the Trainer of Hugging Face transformers; resume from its newest checkpoint.

torchrun --nproc-per-node 2 gpt_trainer.py --steps 60      (needs transformers and accelerate)
"""

import torch
from gpt import SIZES, Text, options
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Windows(Dataset):
    """The windows of the text under the names that the Trainer passes to the model."""

    def __init__(self, text):
        self.text = text

    def __len__(self):
        return len(self.text)

    def __getitem__(self, index):
        tokens, _ = self.text[index]
        return {"input_ids": tokens, "labels": tokens}


def main():
    args = options(__doc__, "gpt-trainer")
    on_gpu = torch.cuda.is_available()
    text = Text(args.length)
    layers, heads, width = SIZES[args.size]
    config = GPT2Config(
        vocab_size=len(text.characters), n_positions=args.length, n_layer=layers, n_head=heads, n_embd=width
    )
    settings = TrainingArguments(
        output_dir=str(args.checkpoint),
        use_cpu=not on_gpu,  # without it, ranks on CPUs train by themselves
        ddp_backend="nccl" if on_gpu else "gloo",
        max_steps=args.steps,
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.accumulate,
        gradient_checkpointing=args.activation_checkpoints,
        learning_rate=args.learning_rate,
        lr_scheduler_type="cosine",
        bf16=args.bf16,
        save_steps=args.save_every,
        logging_steps=10,
        save_total_limit=3,
        seed=0,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model=GPT2LMHeadModel(config), args=settings, train_dataset=Windows(text))
    newest = get_last_checkpoint(settings.output_dir) if args.checkpoint.is_dir() else None
    trainer.train(resume_from_checkpoint=newest)


if __name__ == "__main__":
    main()
